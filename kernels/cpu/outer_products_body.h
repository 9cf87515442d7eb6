/* Implements outer_products.h as TSR_OUTER_PRODUCTS_NAME, for each variant to include. A vector has
 * TSR_OUTER_PRODUCTS_BYTES bytes; every element is computed alike, whatever that number is. */
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

enum { TILE = TSR_OUTER_TILE, VECTORS = TILE * 8 / TSR_OUTER_PRODUCTS_BYTES };
/* Rows that are computed together: their sums fill half of the registers. */
enum { ROWS = 8 / VECTORS > 0 ? 8 / VECTORS : 1 };

typedef double unaligned __attribute__((vector_size(TSR_OUTER_PRODUCTS_BYTES), aligned(8), may_alias));
typedef double vector __attribute__((vector_size(TSR_OUTER_PRODUCTS_BYTES)));

/* Computes ROWS rows of the tile. All but the outer loop are unrolled, so that sums are in registers. */
ALWAYS_INLINE void add_rows(const double *a, const double *b, size_t n, double *c, size_t ld)
{
    vector sum[ROWS][VECTORS];
#pragma GCC unroll 8
    for (size_t r = 0; r < ROWS; r++) {
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++)
            sum[r][v] = ((const unaligned *)(const void *)(c + r * ld))[v];
    }
    for (size_t k = 0; k < n; k++) {
        const unaligned *const from = (const void *)(b + k * TILE);
#pragma GCC unroll 8
        for (size_t r = 0; r < ROWS; r++) {
#pragma GCC unroll 8
            for (size_t v = 0; v < VECTORS; v++)
                sum[r][v] += a[k * TILE + r] * from[v];
        }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < ROWS; r++) {
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++)
            ((unaligned *)(void *)(c + r * ld))[v] = sum[r][v];
    }
}

void TSR_OUTER_PRODUCTS_NAME(const double *a, const double *b, size_t n, double *c, size_t ld)
{
    for (size_t r = 0; r < TILE; r += ROWS)
        add_rows(a + r, b, n, c + r * ld, ld);
}
