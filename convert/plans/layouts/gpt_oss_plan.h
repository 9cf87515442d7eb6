/* Declares the plan that puts MXFP4 experts of gpt-oss, stored one by one, into the layout of its releases. Codes and
 * scales stay unchanged. */
#pragma once

#include "common/block.h"
#include "convert/plan/plan.h"

typedef struct tsr_gpt_oss_options {
    tsr_block source_block; /* 0 x 0: as in config.json */
    uint64_t max_shard_bytes;
} tsr_gpt_oss_options;

/* Makes the plan for *source. `source` outlives it. TSR_E_UNSUPPORTED: another model, other codes, or the layout
 * already. On failure *plan is empty. */
tsr_status tsr_gpt_oss_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_gpt_oss_options *options,
                            tsr_err *err);
