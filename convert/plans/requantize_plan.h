/* Declares the plan that changes an FP8 checkpoint's block size, scale format or dialect, without a BF16
 * intermediate. */
#pragma once

#include "common/block.h"
#include "convert/plan/plan.h"
#include "formats/weights/weights.h"
#include "quantize/fp8_block.h"

typedef struct tsr_requantize_options {
    tsr_block source_block; /* 0 x 0: as in config.json */
    tsr_block block;        /* 0 x 0: that of the source, or 128 x 128 if it has none */
    int scale_fmt;          /* a tsr_scale_fmt; -1: that of the source */
    int dialect;            /* a tsr_dialect; -1: that of the source */
    tsr_scale_search search;
    uint64_t max_shard_bytes;
} tsr_requantize_options;

/* Sets unset options from the source. TSR_E_UNSUPPORTED: it has no FP8. */
tsr_status tsr_requantize_settle(tsr_requantize_options *options, const tsr_checkpoint *source,
                                 const tsr_weights *weights, tsr_err *err);

/* Makes the plan for sources[0], with these FP8 and plain weights. sources[1], if n_sources is 2, is the unquantized
 * original that the report compares with. A weight is requantized only if its scales cannot stay: the blocks differ, or
 * the new scales must be powers of two and the old ones are not. Scales that stay are written as FP32, exactly. On
 * failure *plan is empty. */
tsr_status tsr_requantize_plan(tsr_plan *plan, const tsr_checkpoint *const *sources, size_t n_sources,
                               const tsr_weights *weights, const tsr_requantize_options *options, tsr_err *err);
