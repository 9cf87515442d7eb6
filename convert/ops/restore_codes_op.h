/* The step that makes codes of 4 bits again from the values that they stood for. */
#ifndef TSR_CONVERT_OPS_RESTORE_CODES_OP_H
#define TSR_CONVERT_OPS_RESTORE_CODES_OP_H

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"

/* Adds the step that makes X.weight_packed of `values`, BF16 [R, C] of the plan's first source. They are the values of
 * `original`, packed integers of 4 bits of its second source, whose scales, zero points and order give the codes; a value
 * that no code gives ends the job. */
tsr_status tsr_plan_restore_codes(tsr_plan *plan, const tsr_tensor *values, const tsr_weight *original,
                                  tsr_err *err) TSR_WARN_UNUSED;

/* The tensor, which is the second source's, as steps name it. NULL when memory is exhausted. */
const tsr_tensor *tsr_of_original(tsr_plan *plan, const tsr_tensor *tensor);

#endif
