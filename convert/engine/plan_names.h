/* Checks that no name in a plan's output stands for two things. */
#ifndef TSR_CONVERT_ENGINE_PLAN_NAMES_H
#define TSR_CONVERT_ENGINE_PLAN_NAMES_H

#include "convert/engine/plan.h"

/* TSR_E_FORMAT when two outputs are one path, or two tensors of a safetensors file, or of the files that one index
 * maps, have one name: two tensors of the source that collide ('X.weight' and 'X.weight_packed'). */
tsr_status tsr_plan_check_names(const tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;

/* Whether a name that a file gives is one that a safetensors file of the output may have: no path, no control
 * character, not hidden, and it ends as they end. */
bool tsr_is_shard_name(const char *name);

/* The same of an index. */
bool tsr_is_index_name(const char *name);

#endif
