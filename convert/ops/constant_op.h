/* Writes a tensor of one FP32 number that the plan knows. */
#pragma once

#include "convert/plan/plan.h"

/* Adds a step that writes `value` as F32 of shape [1], or of shape [] if `rank` is 0. `beside` is a tensor of the
 * source next to which it belongs; it is not read. `name` is in the plan's arena, or NULL if memory is exhausted. */
tsr_status tsr_plan_constant(tsr_plan *plan, const tsr_tensor *beside, const char *name, unsigned rank, float value,
                             tsr_err *err);
