/* The file that Tessera writes next to an output that is not a whole checkpoint with the usual tensors: the rank and
 * the number of ranks (tessera-tp.json), or the kernels whose layout the weights have (tessera-layout.json). */
#ifndef TSR_FORMATS_CHECKPOINT_RANK_FILE_H
#define TSR_FORMATS_CHECKPOINT_RANK_FILE_H

#include "common/text.h"
#include "formats/checkpoint/checkpoint.h"

#include <stdint.h>

#define TSR_RANK_NAME "tessera-tp.json"

typedef struct tsr_rank_file {
    uint64_t rank, ranks; /* the tensor-parallel cut; ranks is 0 without one */
    const char *target;   /* "fastertransformer", "trtllm"; NULL: plain layout */
    const char *producer; /* producer of the layout: "ft", "trtllm-main", ... */
    const char *scale_dtype;
    uint64_t arch, bits, group, weights; /* 80 for sm80; of a code; input features to a scale, 0: all; how many */
} tsr_rank_file;

/* Reads whichever of the two files exists, into `arena`. People may have edited it: TSR_E_FORMAT when it is not JSON or
 * lacks a member. */
tsr_status tsr_rank_file_read(tsr_rank_file *manifest, const tsr_checkpoint *checkpoint, tsr_arena *arena,
                              tsr_err *err) TSR_WARN_UNUSED;

/* Appends a member of JSON: {"rank": 0, "ranks": 2}, or null where it is the rank of no cut. */
void tsr_rank_file_write(tsr_text *out, const char *key, const tsr_rank_file *manifest);

#endif
