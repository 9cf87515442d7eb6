/* Measures the error of a weight of one checkpoint against the same weight of another.
 *
 *   error = sum over i, j of c_j (x_ij - y_ij)^2  /  sum over i, j of c_j x_ij^2
 *
 * c_j is the importance of input channel j (formats/importance/importance.h), or 1 for a matrix without data. This is
 * the error of plan-schemes, computed from the stored values of both. */
#pragma once

#include "common/parallel/threads.h"
#include "formats/importance/importance.h"
#include "verify/values/weight_reader.h"

/* Computes the error of `y`, a weight of `to`, against `x`, a weight of `from`. `importance` may be NULL. Sums are in
 * double and in a fixed order. An error of 0 if x is all zeros. TSR_E_MISMATCH: the shapes differ, or the importance is
 * of another model. TSR_E_VALUE: a value is NaN or infinite. Also read errors, TSR_E_NOMEM and TSR_E_CANCELLED. */
tsr_status tsr_weight_error(const tsr_side *from, const tsr_weight *x, const tsr_side *to, const tsr_weight *y,
                            const tsr_importance *importance, const tsr_run_options *run, double *error, tsr_err *err);
