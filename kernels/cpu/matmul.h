/* Declares a small matrix product in double, which folds one weight into another.
 *
 * c[m, n] = sum over k, in order, of a[k, m] * b[k, n]: products and sums in FP64, not fused. Products of FP32 operands
 * are exact, and the error of a sum of a few hundred is below 1e-13 of its terms. Every variant gives the same bits,
 * since variants differ in how many columns they take at a time, not in the order of a sum. Matrices are dense.
 * Thread-safe. */
#pragma once

#include <stddef.h>

typedef void tsr_matmul_tn_fn(const float *a, const float *b, size_t k, size_t m, size_t n, double *c);
