/* Declares conversions of steps whose input is a matrix that no file holds (tsr_tensor_is_made): they decode it while
 * they run. */
#pragma once

#include "convert/plan/plan.h"

/* Makes *step decode its first input, a matrix that no file holds, in whole rows before its operation runs. The step
 * reads the inputs of `decoded`; its other inputs are dropped. */
tsr_status tsr_step_decode(tsr_plan *plan, tsr_step *step, const tsr_decoded *decoded, tsr_err *err);

/* Makes *step, which copies such a matrix to a BF16 output, decode and round it. */
tsr_status tsr_step_keep(tsr_plan *plan, tsr_step *step, const tsr_decoded *decoded, tsr_err *err);

/* Makes *step, which copies such a matrix to an output of the same dtype, copy its rows unchanged. */
tsr_status tsr_step_take(tsr_plan *plan, tsr_step *step, const tsr_decoded *decoded, tsr_err *err);

/* Makes *step, which copies a vector that no file holds, take its elements from `from`: first, first + stride, and so
 * on. */
tsr_status tsr_step_pick(tsr_plan *plan, tsr_step *step, const tsr_tensor *from, uint64_t first, uint64_t stride,
                         tsr_err *err);
