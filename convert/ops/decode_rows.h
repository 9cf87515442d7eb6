/* Any weight of codes as rows of FP32, decoded on the way: what conversions between codings read. */
#ifndef TSR_CONVERT_OPS_DECODE_ROWS_H
#define TSR_CONVERT_OPS_DECODE_ROWS_H

#include "convert/engine/plan.h"
#include "convert/ops/row_decoder.h"

/* How the view's rows are decoded. In the plan's arena; *view and its weight are copied. NULL when memory is exhausted. */
const tsr_decoded *tsr_decode_rows(tsr_plan *plan, const tsr_row_view *view);

/* The same of the values of its scales, E8M0, [rows, grid_cols]: what the largest of them is. */
const tsr_decoded *tsr_decode_powers(tsr_plan *plan, const tsr_row_view *view);

#endif
