/* The block-FP8 product in double precision, with the errors that each way of accumulating may make.
 *
 * It decodes by itself (verify/weights/weight_reader.h) and shares no arithmetic with the kernels. A tile's sum is
 * exact: products of e4m3 values are multiples of 2^-18 below 2^18. */
#ifndef TSR_VERIFY_KERNELS_GEMM_ORACLE_H
#define TSR_VERIFY_KERNELS_GEMM_ORACLE_H

#include "verify/evidence/device.h"

typedef struct tsr_exact {
    double value;
    double mass;        /* sum of |scale_a * scale_w * A * W| */
    double slack[2];    /* what truncation takes at most: promoted, unpromoted */
    double variance[2]; /* what it takes in the mean, squared */
    double underflow;   /* what FP32 loses below its normal numbers at most: 2^-126 (sum of |A W| + 2) a tile */
} tsr_exact;

/* Rows of codes as doubles, each padded with zeros to a multiple of 128: out [rows][tsr_padded(k)]. */
size_t tsr_padded(size_t k);
void tsr_gemm_decode(const uint8_t *codes, size_t rows, size_t k, double *out);

/* exact [m][ld] of args' operands; a and w are theirs, decoded. args->d and ldd are not looked at. */
void tsr_gemm_exact(const tsr_fp8_gemm_args *args, const double *a, const double *w, tsr_exact *exact, size_t ld);

/* y[m][ld] = a[m][k] * w[n][k]^T in double over 8 lanes; k is a multiple of 8. */
void tsr_product(const double *a, const double *w, size_t m, size_t n, size_t k, double *y, size_t ld);

/* How far a result may lie from e->value, and how far it does in the mean (squared).
 *   FP32        (128 + tiles + 3) * 2^-24 * mass: each product is added with one rounding, each tile with three
 *   promoted    per step 33 * 2^-13 * 1.01 * max(|sum so far|, |products|), scaled; + 3 (tiles + 2) 2^-24 mass
 *   unpromoted  the same over one accumulator for all of k
 * (kernels/cuda/block_fp8_gemm.h derives it), then what underflows, scales' products above all (whether a kernel keeps
 * subnormal numbers is its affair; the unpromoted model drops 33 * 2^-113 a step), and half a step of `out`. In the
 * mean each of the 33 numbers of a step loses a part of q = 2^-13 * 2^floor(lg largest), evenly spread and with a
 * random sign: 33 q^2 / 3 a step; rounding to `out` h^2 / 3 with h half a step; FP32's roundings the bound of one in
 * the mean, sqrt(128 + tiles + 3) 2^-24 mass. */
double tsr_gemm_bound(const tsr_exact *e, tsr_accumulation accumulation, tsr_out out, size_t k);
double tsr_gemm_variance(const tsr_exact *e, tsr_accumulation accumulation, tsr_out out, size_t k);

/* By which share of themselves sound results may all be too small. A tensor core truncates its sum after each step, by
 * less than 2^-13 of it, half of that in the mean: over four steps until it is promoted, or over all of k. The products
 * that it aligns lose less, since few of them have bits to lose. FP32 rounds to nearest, which leaves nothing. */
double tsr_gemm_slope(tsr_accumulation accumulation, size_t k);

/* The same of 16-bit products, one by one in FP32 or in a tensor core's steps of 16, which keep 2^-22 of their sum. */
double tsr_weight_only_slope(bool one_by_one, size_t k);

/* Half a step of `out` at x: the most that rounding once to `out` moves x. */
double tsr_half_step(tsr_out out, double x);

/* Whether a result of at most `reach`, from FP32 sums of terms with magnitudes of `mass` in all, may overflow `out`:
 * Inf and NaN are not errors then. */
bool tsr_may_overflow(tsr_out out, double reach, double mass);

#endif
