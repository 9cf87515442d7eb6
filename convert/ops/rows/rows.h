/* Helpers of operations whose units are whole rows. */
#pragma once

#include "common/checked.h"
#include "convert/plan/plan.h"

/* Returns the number of units of an operation that has one. */
static inline uint64_t tsr_one_unit(const tsr_step *step)
{
    (void)step;
    return 1;
}

/* Returns the rows of [R, C] that fill a unit: a multiple of `step`, at most all rows. For decoded tensors also a
 * multiple of 64, so that no unit begins in the middle of a decoder's tile. */
static inline uint64_t tsr_unit_rows(const tsr_tensor *t, uint64_t step)
{
    step = t->source == TSR_SOURCE_DECODED ? tsr_round_up(step, 64) : step;
    const uint64_t row_bytes = t->shape[1] * tsr_dtype_bytes((tsr_dtype)t->dtype);
    const uint64_t fit = TSR_UNIT_BYTES / tsr_max_u64(1, row_bytes) / step * step;
    return tsr_min_u64(tsr_max_u64(step, fit), tsr_max_u64(1, t->shape[0]));
}

/* Returns a window of `bytes` bytes from `offset` on. */
static inline tsr_window tsr_run_window(uint64_t offset, uint64_t bytes)
{
    return (tsr_window){.offset = offset, .rows = 1, .row_bytes = bytes, .pitch = bytes};
}

/* Returns a window of all bytes of a tensor. */
static inline tsr_window tsr_whole_window(const tsr_tensor *t)
{
    return tsr_run_window(0, t->bytes);
}

/* Returns the window of rows [row, row + rows) of a tensor whose bytes are spread evenly over its first dimension. A
 * scalar is one row. */
static inline tsr_window tsr_rows_window(const tsr_tensor *t, uint64_t row, uint64_t rows)
{
    const uint64_t row_bytes = t->bytes / (t->rank == 0 ? 1 : t->shape[0]);
    return tsr_run_window(row * row_bytes, rows * row_bytes);
}
