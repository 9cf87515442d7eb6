/* The file that Tessera writes beside an output that is not a complete checkpoint with the usual tensors.
 * tessera-tp.json has the rank and the number of ranks; tessera-layout.json has the kernels whose layout the weights
 * have. */
#pragma once

#include "common/text.h"
#include "formats/checkpoint/checkpoint.h"

#include <stdint.h>

#define TSR_RANK_NAME "tessera-tp.json"

typedef struct tsr_rank_file {
    uint64_t rank, ranks; /* the tensor-parallel cut; ranks is 0 if there is none */
    const char *target;   /* "fastertransformer", "trtllm"; NULL: plain layout */
    const char *producer; /* producer of the layout: "ft", "trtllm-main", ... */
    const char *scale_dtype;
    uint64_t arch, bits, group, weights; /* arch: 80 for sm80; bits of a code; group: input features per scale, 0: all;
                                          * weights: their number */
} tsr_rank_file;

/* Reads the file that exists, if any, into `arena`. It may have been edited by hand. TSR_E_FORMAT: it is not JSON or
 * lacks a member. */
tsr_status tsr_rank_file_read(tsr_rank_file *manifest, const tsr_checkpoint *checkpoint, tsr_arena *arena,
                              tsr_err *err);

/* Appends a JSON member: {"rank": 0, "ranks": 2}, or null if it is not a rank of a cut. */
void tsr_rank_file_write(tsr_text *out, const char *key, const tsr_rank_file *manifest);
