/* Matrices in units of whole rows: what the operations that go row by row share. */
#ifndef TSR_CONVERT_OPS_ROWS_ROWS_H
#define TSR_CONVERT_OPS_ROWS_ROWS_H

#include "common/checked.h"
#include "convert/plan/plan.h"

/* Rows of [R, C] that fill a unit, a multiple of `step`, but no more than there are. What is decoded on the way is cut at
 * multiples of 64 as well, where no decoder has to begin in the middle of a tile. */
static inline uint64_t tsr_unit_rows(const tsr_tensor *t, uint64_t step)
{
    step = t->source == TSR_SOURCE_DECODED ? tsr_round_up(step, 64) : step;
    const uint64_t row_bytes = t->shape[1] * tsr_dtype_bytes((tsr_dtype)t->dtype);
    const uint64_t fit = TSR_UNIT_BYTES / tsr_max_u64(1, row_bytes) / step * step;
    return tsr_min_u64(tsr_max_u64(step, fit), tsr_max_u64(1, t->shape[0]));
}

/* `bytes` bytes from `offset` on. */
static inline tsr_window tsr_run_window(uint64_t offset, uint64_t bytes)
{
    return (tsr_window){.offset = offset, .rows = 1, .row_bytes = bytes, .pitch = bytes};
}

/* All bytes of a tensor. */
static inline tsr_window tsr_whole_window(const tsr_tensor *t)
{
    return tsr_run_window(0, t->bytes);
}

/* Rows [row, row + rows) of a tensor, its bytes spread evenly over its first dimension. */
static inline tsr_window tsr_rows_window(const tsr_tensor *t, uint64_t row, uint64_t rows)
{
    const uint64_t row_bytes = t->bytes / t->shape[0];
    return tsr_run_window(row * row_bytes, rows * row_bytes);
}

#endif
