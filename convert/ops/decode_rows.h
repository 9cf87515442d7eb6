/* Any weight of codes as rows of FP32, decoded on the way: what conversions between codings read. */
#ifndef TSR_CONVERT_OPS_DECODE_ROWS_H
#define TSR_CONVERT_OPS_DECODE_ROWS_H

#include "convert/engine/plan.h"
#include "formats/model/weights.h"

/* Some rows of a weight of codes, its outputs: all, those of one expert of a stack, or every other one of it, where gate
 * and up are interleaved. */
typedef struct tsr_row_view {
    const tsr_weight *weight;
    uint64_t first, step; /* row r of the view is row first + r * step of the weight's, counted over all matrices */
    uint64_t rows;
} tsr_row_view;

/* How the view's rows are decoded. In the plan's arena; *view and its weight are copied. NULL when memory is exhausted. */
const tsr_decoded *tsr_decode_rows(tsr_plan *plan, const tsr_row_view *view);

/* The same of the values of its scales, E8M0, [rows, grid_cols]: what the largest of them is. */
const tsr_decoded *tsr_decode_powers(tsr_plan *plan, const tsr_row_view *view);

/* The window of rows [row, row + rows) of the view in a tensor whose bytes are spread evenly over the weight's rows. */
tsr_window tsr_view_window(const tsr_row_view *view, const tsr_tensor *t, uint64_t row, uint64_t rows);

/* The window of the global scale that row `row` of the view has, and all others of its matrix. */
tsr_window tsr_view_global_window(const tsr_row_view *view, uint64_t row);

#endif
