/* Declares the product of two thin matrices, which a low-rank adapter adds to a weight, and the sums that compare the
 * update with what was stored of it.
 *
 * Every variant gives the same bits. -ffp-contract=off applies, so products and sums are rounded one by one. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Columns of a tile of the right matrix. */
enum { TSR_LOW_RANK_TILE = 32 };

/* Computes out[m, n] = scale * s[m, n]. s[m, n] is the FP32 sum over i = 0 .. rank - 1, in this order and from 0 on, of
 * left[m, i] * right[i, n]. `left` is [rows, rank], dense. `right` is in tiles: element (i, n) is at
 * (n / 32 * rank + i) * 32 + n % 32, and the last tile is padded. `out` is [rows, cols], dense. Thread-safe. */
typedef void tsr_low_rank_fn(const float *left, const float *right, size_t rows, size_t cols, size_t rank, float scale,
                             float *out);

/* Sums over elements: x is the update of one, and y = after - before is the change that was stored. */
typedef struct tsr_update_sums {
    double x2, d2, xy, y2; /* sums of x^2, (x - y)^2, x y and y^2 */
    uint64_t nonzero;      /* x != 0 */
    uint64_t lost;         /* x != 0 and y == 0 */
    float amax;            /* largest |x|; no update may be NaN */
} tsr_update_sums;

/* Adds n elements to *sums. Each of the four sums is the FP64 sum, in order, of 8 partial sums: element i belongs to
 * partial sum i % 8. All differences and products are FP64. Thread-safe. */
typedef void tsr_update_sums_fn(const float *before, const float *update, const float *after, size_t n,
                                tsr_update_sums *sums);
