/* Declares the checks of scales and values, which are parts of tsr_check_weights, and their shared state. */
#pragma once

#include "verify/compare/check_weights.h"

enum {
    TSR_FINDING_TEXT = 512,
    /* Diagnosing a fault reads more of the checkpoint. Beyond this many tensors the pattern is clear. */
    TSR_MAX_EXPLAINED = 16,
};

typedef struct tsr_weights_checking {
    const tsr_side *src, *dst;
    const tsr_comparison *c;
    const tsr_weight_limits *limits;
    tsr_findings *out;
    size_t explained;
    bool *wrong; /* [c->count] */
    tsr_err *err;
} tsr_weights_checking;

/* Adds a finding about `where`: a tensor, file or key. */
tsr_status tsr_add_finding(const tsr_weights_checking *checking, tsr_check check, const char *where, const char *fmt,
                           ...) TSR_PRINTF(4, 5);

/* Checks that scales and NVFP4's global scales are plausible numbers, and that fused layers have equal global
 * scales. */
tsr_status tsr_check_weight_scales(const tsr_weights_checking *checking);

/* Returns true for a scale of the FP8 KV cache that the output states, which a source without such a cache lacks. */
bool tsr_is_cache_scale(const tsr_weights_checking *checking, const tsr_pair *pair);

/* Checks that no value is NaN or Inf unless it is in the source. */
tsr_status tsr_check_codes(const tsr_weights_checking *checking);

/* Checks that errors of values are within the limits, and explains likely causes if they are not. */
tsr_status tsr_check_values(tsr_weights_checking *checking);

/* Checks that no block has a much smaller error with another scale. */
tsr_status tsr_check_blocks(const tsr_weights_checking *checking);
