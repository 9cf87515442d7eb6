/* Reads and writes checkpoints with DeepSeek-V4's tensor names: the scale of X.weight is X.scale, and config.json
 * states the dtype of experts. */
#pragma once

#include "convert/plan/plan.h"

/* Returns true if the loaders of this model_type use these names: DeepSeek-V4 and V4.1. */
bool tsr_has_deepseek_v4_names(const tsr_checkpoint *checkpoint);

/* Sets expert_dtype ("fp4", "fp8") in the plan's config.json: at the top level and, for V4.1, also in
 * quantization_config. */
tsr_status tsr_plan_expert_dtype(tsr_plan *plan, const char *dtype, tsr_err *err);

/* Returns true for an unquantized n-gram table of V4.1. Loaders read these tables as e4m3 with one scale per 32
 * columns. */
bool tsr_is_plain_table(const tsr_tensor *t);

/* Adds a step that quantizes such a table. */
tsr_status tsr_plan_deepseek_v4_table(tsr_plan *plan, const tsr_tensor *table, tsr_err *err);
