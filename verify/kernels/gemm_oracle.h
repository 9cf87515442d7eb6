/* Computes the block FP8 product in double, and bounds the errors of each way of accumulating.
 *
 * It has its own decoder (verify/values/weight_reader.h) and shares no arithmetic with the kernels. The sum of a
 * tile is exact, because products of e4m3 values are multiples of 2^-18 below 2^18. */
#pragma once

#include "verify/evidence/device.h"

typedef struct tsr_exact {
    double value;
    double mass;        /* sum of |scale_a * scale_w * A * W| */
    double slack[2];    /* largest error of truncation: promoted, unpromoted */
    double variance[2]; /* mean square error of truncation */
    double underflow;   /* largest error of FP32 underflow: 2^-126 (sum of |A W| + 2) per tile */
} tsr_exact;

/* Returns k rounded up to a multiple of 128. Decoded rows have this length, padded with zeros: out
 * [rows][tsr_padded(k)]. */
size_t tsr_padded(size_t k);
void tsr_gemm_decode(const uint8_t *codes, size_t rows, size_t k, double *out);

/* Computes exact [m][ld] for the operands of args. a and w are those operands, decoded. args->d and ldd are unused. */
void tsr_gemm_exact(const tsr_fp8_gemm_args *args, const double *a, const double *w, tsr_exact *exact, size_t ld);

/* Computes y[m][ld] = a[m][k] * w[n][k]^T in double with 8 partial sums; k is a multiple of 8. */
void tsr_product(const double *a, const double *w, size_t m, size_t n, size_t k, double *y, size_t ld);

/* Returns the largest error of a result, |result - e->value|, for a way of accumulating:
 *
 *   FP32        (128 + tiles + 3) * 2^-24 * mass: each product adds one rounding, each tile three
 *   promoted    per step 33 * 2^-13 * 1.01 * max(|sum so far|, |products|), scaled; + 3 (tiles + 2) 2^-24 mass
 *   unpromoted  the same over one accumulator for all of k
 *
 * kernels/cuda/block_fp8_gemm.h derives these bounds. Underflow, mainly of the products of scales, and half a step of
 * `out` are added. Kernels may flush subnormal numbers or keep them. The unpromoted model drops 33 * 2^-113 a step.
 *
 * The mean square error follows from: each of the 33 numbers of a step loses a part of q = 2^-13 * 2^floor(lg largest)
 * that is uniformly distributed with a random sign, so 33 q^2 / 3 a step; rounding to `out` adds h^2 / 3, with h half a
 * step; FP32's roundings add the square of sqrt(128 + tiles + 3) 2^-24 mass. */
double tsr_gemm_bound(const tsr_exact *e, tsr_accumulation accumulation, tsr_out out, size_t k);
double tsr_gemm_variance(const tsr_exact *e, tsr_accumulation accumulation, tsr_out out, size_t k);

/* The range of a correct result: the exact value, the largest and the mean square error, and the magnitudes from
 * which overflow follows. */
typedef struct tsr_gemm_margin {
    double value, bound, variance;
    double reach; /* the largest correct magnitude, also of partial results */
    double mass;
} tsr_gemm_margin;

/* Returns the margin of the sum of `ranks` results, rank r's over K elements with the exact value parts[r * step]. Each
 * of the ranks - 1 additions is rounded to `out`. In any order, a sum is at most S, the sum of the largest correct
 * |results|. So the i-th addition errs by at most half a step of `out` at S and the errors before it.
 * Its mean square is h^2 / 3 at the exact sum of i + 1 ranks. For one rank these are tsr_gemm_bound and
 * tsr_gemm_variance. */
tsr_gemm_margin tsr_gemm_margin_of(const tsr_exact *parts, size_t ranks, size_t step, tsr_accumulation accumulation,
                                   tsr_out out, size_t k);

/* Returns the largest relative bias toward zero of correct results.
 *
 * A tensor core truncates its sum after each step, by less than 2^-13 of it, and by half of that on average. It does
 * so for four steps until promotion, or over all of k. The products that it aligns lose less, because few of them
 * have bits to lose. FP32 rounds to nearest, which causes no bias. */
double tsr_gemm_slope(tsr_accumulation accumulation, size_t k);

/* Like tsr_gemm_slope for 16-bit products: one by one in FP32, or in a tensor core's steps of 16, which keep 2^-22
 * of the sum. */
double tsr_weight_only_slope(bool one_by_one, size_t k);

/* Returns half a step of `out` at x: the largest error of rounding x once to `out`. */
double tsr_half_step(tsr_out out, double x);

/* Returns true if a result of magnitude `reach` may overflow `out`. `mass` is the sum of the magnitudes of its FP32
 * terms. Inf and NaN are then not errors. */
bool tsr_may_overflow(tsr_out out, double reach, double mass);
