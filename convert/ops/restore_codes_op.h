/* Declares the step that restores 4-bit codes from the values that they were decoded to. */
#pragma once

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"

/* Adds the step that makes X.weight_packed from `values`, BF16 [R, C] of the plan's first source. They are the decoded
 * values of `original`, packed 4-bit integers of its second source, whose scales, zero points and group order determine
 * the codes. A value that no code decodes to ends the job. */
tsr_status tsr_plan_restore_codes(tsr_plan *plan, const tsr_tensor *values, const tsr_weight *original, tsr_err *err);

/* Returns a copy of a tensor of the second source, as steps refer to it. NULL when memory is exhausted. */
const tsr_tensor *tsr_of_original(tsr_plan *plan, const tsr_tensor *tensor);
