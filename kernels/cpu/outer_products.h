/* Declares a sum of outer products in double, from which symmetric products, Cholesky factors and GPTQ are built.
 *
 * Every variant gives the same bits. -ffp-contract=off applies, so products and sums are rounded one by one. */
#pragma once

#include <stddef.h>

enum { TSR_OUTER_TILE = 8 };

/* Adds the terms a[k][i] * b[k][j], for k = 0 .. n - 1 in this order, to c[i][j], i, j < 8. `a` and `b` are [n][8],
 * dense. Rows of `c` are `ld` elements apart. Thread-safe. */
typedef void tsr_outer_products_fn(const double *a, const double *b, size_t n, double *c, size_t ld);
