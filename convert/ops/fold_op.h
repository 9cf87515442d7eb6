/* Copies a tensor with its rows and columns multiplied by powers of two (quantize/fold.h). */
#pragma once

#include "convert/plan/plan.h"
#include "quantize/fold.h"

/* Adds a step that writes a matrix [R, C] or a vector [C] of BF16, F16 or F32 under its own name. *fold is read when
 * the plan runs. */
tsr_status tsr_plan_fold(tsr_plan *plan, const tsr_tensor *tensor, const tsr_fold *fold, tsr_err *err);
