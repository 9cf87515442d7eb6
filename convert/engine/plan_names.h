/* Checks that no name in a plan's output is used twice. */
#ifndef TSR_CONVERT_ENGINE_PLAN_NAMES_H
#define TSR_CONVERT_ENGINE_PLAN_NAMES_H

#include "convert/engine/plan.h"

/* TSR_E_FORMAT when two outputs have the same path, or two tensors of one safetensors file, or of the files that one
 * index maps, have the same name, because tensors of the source collide ('X.weight' and 'X.weight_packed'). */
tsr_status tsr_plan_check_names(const tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;

/* Whether a name that was read from a file may be given to a safetensors file of the output: it has no folder, no
 * control character, no dot at its beginning, and the right ending. */
bool tsr_is_shard_name(const char *name);

/* The same for the name of an index. */
bool tsr_is_index_name(const char *name);

#endif
