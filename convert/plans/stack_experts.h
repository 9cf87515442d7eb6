/* The experts of a layer that are stored one by one, put together as their family's stacks. */
#ifndef TSR_CONVERT_PLANS_STACK_EXPERTS_H
#define TSR_CONVERT_PLANS_STACK_EXPERTS_H

#include "convert/engine/plan.h"
#include "formats/model/weights.h"

/* If `weight` is a routed expert's matrix or bias: the step that makes the stack which it belongs to, when it is the first
 * of it, and its notes; *handled is true then. TSR_E_UNSUPPORTED: a family of which nobody knows how it stores stacks;
 * experts that lack a member, or are of several shapes or forms. */
tsr_status tsr_stack_experts(tsr_plan *plan, const tsr_weights *weights, const tsr_weight *weight, tsr_dtype dtype,
                             bool *handled, tsr_err *err) TSR_WARN_UNUSED;

/* The same in gpt-oss' layout: the codes and scales of its experts as they are, a step each. TSR_E_UNSUPPORTED too: an
 * expert whose weight is not MXFP4. */
tsr_status tsr_stack_codes(tsr_plan *plan, const tsr_weights *weights, const tsr_weight *weight, bool *handled,
                           tsr_err *err) TSR_WARN_UNUSED;

#endif
