/* The file that Tessera writes beside an output that is not a whole checkpoint with the usual tensors. It says which of
 * how many ranks the output is for (tessera-tp.json), or whose kernels the weights are laid out for
 * (tessera-layout.json). */
#ifndef TSR_FORMATS_CHECKPOINT_MANIFEST_H
#define TSR_FORMATS_CHECKPOINT_MANIFEST_H

#include "common/text.h"
#include "formats/checkpoint/checkpoint.h"

#include <stdint.h>

#define TSR_RANK_NAME "tessera-tp.json"

typedef struct tsr_manifest {
    uint64_t rank, ranks; /* of a tensor-parallel cut; ranks is 0 without one */
    const char *target;   /* "fastertransformer", "trtllm"; NULL: plain layout */
    const char *producer; /* whose layout: "ft", "trtllm-main", ... */
    const char *scale_dtype;
    uint64_t arch, bits, group, weights; /* 80 for sm80; of a code; input features to a scale, 0: all; how many */
} tsr_manifest;

/* Reads whichever of the two files exists, into `arena`. People may have edited it: TSR_E_FORMAT when it is not JSON or
 * lacks a member. */
tsr_status tsr_manifest_read(tsr_manifest *manifest, const tsr_checkpoint *checkpoint, tsr_arena *arena,
                             tsr_err *err) TSR_WARN_UNUSED;

/* Appends a member of JSON: {"rank": 0, "ranks": 2}, or null where it is the rank of no cut. */
void tsr_manifest_write_rank(tsr_text *out, const char *key, const tsr_manifest *manifest);

#endif
