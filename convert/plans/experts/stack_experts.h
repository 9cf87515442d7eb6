/* Declares steps that combine the experts of a layer, stored one by one, into the stacks of their family. */
#pragma once

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"

/* Adds the step that makes a stack of experts, and its notes, if `weight` is the first routed expert of that stack.
 * Sets *handled to true for every routed expert. TSR_E_UNSUPPORTED: the stack layout of the family is unknown, or
 * experts lack a member or differ in shape or format. */
tsr_status tsr_stack_experts(tsr_plan *plan, const tsr_weights *weights, const tsr_weight *weight, tsr_dtype dtype,
                             bool *handled, tsr_err *err);

/* Adds the steps that copy codes and scales of experts into gpt-oss' layout. TSR_E_UNSUPPORTED: also for an expert that
 * is not MXFP4. */
tsr_status tsr_stack_codes(tsr_plan *plan, const tsr_weights *weights, const tsr_weight *weight, bool *handled,
                           tsr_err *err);
