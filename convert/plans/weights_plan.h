/* Plans of one source that are made from its weights, whatever the policy says. */
#pragma once

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"

/* The rest of a plan once it has begun. */
typedef tsr_status tsr_weights_maker(tsr_plan *plan, const tsr_weights *weights, const void *options, tsr_err *err);

/* Pairs the weights of *source, with blocks of this size if config.json states none, and refuses parts of absorbed
 * projections; `doing` is for the message. Then calls `make`. On failure *plan is empty. */
tsr_status tsr_plan_by_weights(tsr_plan *plan, const tsr_checkpoint *const *source, tsr_block block, const char *doing,
                               tsr_weights_maker *make, const void *options, tsr_err *err);
