/* Checkpoints under DeepSeek-V4's own names: the scale of X.weight is X.scale, and config.json says what experts are. */
#ifndef TSR_CONVERT_CONFIGS_DEEPSEEK_V4_CONFIG_H
#define TSR_CONVERT_CONFIGS_DEEPSEEK_V4_CONFIG_H

#include "convert/plan/plan.h"

/* Returns true if the loaders of this model_type use these names: DeepSeek-V4 and V4.1. */
bool tsr_has_deepseek_v4_names(const tsr_checkpoint *checkpoint);

/* Sets expert_dtype ("fp4", "fp8") in the plan's config.json where its loaders look for it: at the top, and for V4.1 inside
 * quantization_config as well. */
tsr_status tsr_plan_expert_dtype(tsr_plan *plan, const char *dtype, tsr_err *err) TSR_WARN_UNUSED;

/* Returns true for one of V4.1's n-gram tables in plain numbers. Loaders read them as e4m3 with a scale for 32 columns
 * of a row. */
bool tsr_is_plain_table(const tsr_tensor *t);

/* Adds a step that makes such a table of a plain one. */
tsr_status tsr_plan_deepseek_v4_table(tsr_plan *plan, const tsr_tensor *table, tsr_err *err) TSR_WARN_UNUSED;

#endif
