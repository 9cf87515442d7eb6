/* The plan that turns FP8 and integers back into floating point: no scales, no quantization_config, nothing left over.
 */
#ifndef TSR_CONVERT_PLANS_CAST_PLAN_H
#define TSR_CONVERT_PLANS_CAST_PLAN_H

#include "common/block.h"
#include "convert/plan/plan.h"
#include "formats/weights/weights.h"

typedef struct tsr_cast_options {
    tsr_dtype dtype; /* BF16, F16 or F32: of weights that were codes; all other tensors stay as they are */
    tsr_block block; /* as config.json states, where it is 0 x 0 */
    bool stack;      /* experts that are stored one by one become their family's stacks */
    uint64_t max_shard_bytes;
} tsr_cast_options;

/* Makes the plan for *source, which outlives it. On failure *plan is empty. */
tsr_status tsr_cast_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_cast_options *options,
                         tsr_err *err) TSR_WARN_UNUSED;

#endif
