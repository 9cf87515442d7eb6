/* Declares the plan that decodes FP8, FP4 and integers to floating point, and removes scales and
 * quantization_config. */
#pragma once

#include "common/block.h"
#include "convert/plan/plan.h"
#include "formats/weights/weights.h"

typedef struct tsr_cast_options {
    tsr_dtype dtype; /* BF16, F16 or F32, for weights that were codes; other tensors stay unchanged */
    tsr_block block; /* 0 x 0: as in config.json */
    bool stack;      /* experts that are stored one by one are combined into the stacks of their family */
    uint64_t max_shard_bytes;
} tsr_cast_options;

/* Makes the plan for *source, which outlives it. On failure *plan is empty. */
tsr_status tsr_cast_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_cast_options *options,
                         tsr_err *err);
