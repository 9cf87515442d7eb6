/* Begins a plan with the weights of its source, and ends it. */
#include "convert/plans/weights_plan.h"

tsr_status tsr_plan_by_weights(tsr_plan *plan, const tsr_checkpoint *const *source, tsr_block block, const char *doing,
                               tsr_weights_maker *make, const void *options, tsr_err *err)
{
    tsr_weights weights;
    *plan = tsr_plan_begin(source, 1);
    TSR_TRY(tsr_weights_pair(&weights, *source, block, err));
    tsr_status status = tsr_weights_refuse_parts(&weights, *source, doing, err);
    if (status == TSR_OK)
        status = make(plan, &weights, options, err);
    tsr_weights_free(&weights);
    return tsr_plan_ended(plan, status);
}
