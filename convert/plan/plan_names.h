/* Checks that no name in a plan's output is used twice. */
#pragma once

#include "convert/plan/plan.h"

/* TSR_E_FORMAT if two outputs have the same path, or two tensors of one safetensors file, or of files with a common
 * index, have the same name. This happens if tensors of the source collide ('X.weight' and 'X.weight_packed'). */
tsr_status tsr_plan_check_names(const tsr_plan *plan, tsr_err *err);

/* Returns true if a name from a file is acceptable for a safetensors file of the output: no folder, no control
 * character, no leading dot, and the right ending. */
bool tsr_is_shard_name(const char *name);

/* Returns true if a name from a file is acceptable for an index of the output. */
bool tsr_is_index_name(const char *name);
