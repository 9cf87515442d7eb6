/* Implements low_rank.h as TSR_LOW_RANK_NAME and TSR_UPDATE_SUMS_NAME, for each variant to include. A vector has
 * TSR_LOW_RANK_BYTES bytes; every element is computed alike, whatever that number is. */
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

#include "common/float_bits.h"

#include <string.h>

enum { TILE = TSR_LOW_RANK_TILE, LANES = TSR_LOW_RANK_BYTES / 4, VECTORS = TILE / LANES, LANE_SUMS = 8, STRIP = 512 };
/* Rows that are computed together: their sums fill half of the registers. */
enum { ROWS = 8 / VECTORS > 0 ? 8 / VECTORS : 1 };

typedef float vector __attribute__((vector_size(TSR_LOW_RANK_BYTES)));
typedef float unaligned __attribute__((vector_size(TSR_LOW_RANK_BYTES), aligned(4), may_alias));

/* Computes `rows` rows (1 or ROWS) of one tile. All but the outer loop are unrolled, so that sums are in registers. */
ALWAYS_INLINE void tile_rows(const float *left, const float *right, size_t rows, size_t rank, float scale,
                             float out[ROWS][TILE])
{
    vector sum[ROWS][VECTORS] = {{{0}}};
    for (size_t i = 0; i < rank; i++) {
        const unaligned *const b = (const void *)(right + i * TILE);
#pragma GCC unroll 8
        for (size_t r = 0; r < rows; r++) {
            const float a = left[r * rank + i];
#pragma GCC unroll 8
            for (size_t v = 0; v < VECTORS; v++)
                sum[r][v] += a * b[v];
        }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < rows; r++) {
        unaligned *const to = (void *)out[r];
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++)
            to[v] = sum[r][v] * scale;
    }
}

ALWAYS_INLINE void store(float made[ROWS][TILE], size_t rows, size_t n, float *out, size_t ld)
{
    for (size_t r = 0; r < rows; r++) {
        if (n == TILE)
            memcpy(out + r * ld, made[r], sizeof made[r]);
        else
            memcpy(out + r * ld, made[r], n * sizeof *out);
    }
}

void TSR_LOW_RANK_NAME(const float *left, const float *right, size_t rows, size_t cols, size_t rank, float scale,
                       float *out)
{
    for (size_t c = 0; c < cols; c += TILE, right += rank * TILE) {
        const size_t n = cols - c < TILE ? cols - c : TILE;
        float made[ROWS][TILE];
        size_t r = 0;
        for (; r + ROWS <= rows; r += ROWS) {
            tile_rows(left + r * rank, right, ROWS, rank, scale, made);
            store(made, ROWS, n, out + r * cols + c, cols);
        }
        for (; r < rows; r++) {
            tile_rows(left + r * rank, right, 1, rank, scale, made);
            store(made, 1, n, out + r * cols + c, cols);
        }
    }
}

/* ---- the sums ---- */

typedef struct lanes {
    double x2[LANE_SUMS], d2[LANE_SUMS], xy[LANE_SUMS], y2[LANE_SUMS];
} lanes;

/* Adds n <= LANE_SUMS elements, the first of which belongs to partial sum 0. */
ALWAYS_INLINE void add_lanes(const float *before, const float *update, const float *after, size_t n, lanes *s)
{
    for (size_t l = 0; l < n; l++) {
        const double x = (double)update[l], y = (double)after[l] - (double)before[l], d = x - y;
        s->x2[l] += x * x;
        s->d2[l] += d * d;
        s->xy[l] += x * y;
        s->y2[l] += y * y;
    }
}

/* Counts at most STRIP elements. */
ALWAYS_INLINE void count(const float *before, const float *update, const float *after, size_t n, tsr_update_sums *sums)
{
    uint32_t nonzero = 0, lost = 0, amax = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = tsr_f32_bits(update[i]) & TSR_FP32_ABS_MASK;
        const uint32_t some = bits != 0, same = after[i] == before[i];
        amax = bits > amax ? bits : amax;
        nonzero += some;
        lost += some & same;
    }
    const float most = tsr_f32_from_bits(amax);
    sums->nonzero += nonzero;
    sums->lost += lost;
    sums->amax = most > sums->amax ? most : sums->amax;
}

void TSR_UPDATE_SUMS_NAME(const float *before, const float *update, const float *after, size_t n, tsr_update_sums *sums)
{
    lanes s = {{0}, {0}, {0}, {0}};
    for (size_t first = 0; first < n; first += STRIP) {
        const size_t strip = n - first < STRIP ? n - first : STRIP;
        const float *const b = before + first, *const u = update + first, *const a = after + first;
        size_t i = 0;
        for (; i + LANE_SUMS <= strip; i += LANE_SUMS)
            add_lanes(b + i, u + i, a + i, LANE_SUMS, &s);
        add_lanes(b + i, u + i, a + i, strip - i, &s);
        count(b, u, a, strip, sums);
    }
    for (size_t l = 0; l < LANE_SUMS; l++) {
        sums->x2 += s.x2[l];
        sums->d2 += s.d2[l];
        sums->xy += s.xy[l];
        sums->y2 += s.y2[l];
    }
}
