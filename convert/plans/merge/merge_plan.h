/* Plans `tessera merge`: adds the updates of LoRA adapters to the weights of their base model. */
#pragma once

#include "convert/ops/merge/merge_rows.h"
#include "convert/plan/plan.h"

typedef struct tsr_merge_options {
    size_t n_adapters;                  /* 1 to TSR_MERGE_ADAPTERS */
    double factors[TSR_MERGE_ADAPTERS]; /* factors of the updates of each adapter */
    tsr_block source_block;             /* block size of the base; 0 x 0: as in config.json */
    uint64_t max_shard_bytes;
} tsr_merge_options;

/* Makes the plan from sources[0], the base, and those after it, the adapters (formats/adapters/lora.h). The updates of
 * a weight are added up in the order of the adapters. Every weight with an update is stored in its own dtype or format;
 * all other tensors, config.json and the base's side files are copied byte for byte. Errors are those of tsr_lora_read
 * and tsr_plan_merge. On failure *plan is empty. */
tsr_status tsr_merge_plan(tsr_plan *plan, const tsr_checkpoint *const *sources, const tsr_merge_options *options,
                          tsr_err *err);
