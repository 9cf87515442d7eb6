/* Declares weights of codes as rows of FP32 that are decoded while they are read, for conversions between formats. */
#pragma once

#include "convert/ops/rows/row_decoder.h"
#include "convert/plan/plan.h"

/* Returns a decoder of the view's rows, in the plan's arena. *view and its weight are copied. NULL when memory is
 * exhausted. */
const tsr_decoded *tsr_decode_rows(tsr_plan *plan, const tsr_row_view *view);

/* Returns a decoder of the view's E8M0 scales, [rows, grid_cols], for steps that need their largest value. NULL when
 * memory is exhausted. */
const tsr_decoded *tsr_decode_powers(tsr_plan *plan, const tsr_row_view *view);
