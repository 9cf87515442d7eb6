/* Computes products of operands in small groups in double, and bounds the error of a kernel.
 *
 * It uses values that verify's own decoders computed (verify/values/decode.h), and shares no arithmetic with the
 * kernels. The sum of a group is exact, except for BF16 operands, where it is rounded as doubles are. */
#pragma once

#include "verify/evidence/device.h"

typedef struct tsr_mx_exact {
    double value;
    double mass;      /* sum of |t_a A t_w W| */
    double squares;   /* sum over groups of the squares of their terms and of their sum */
    double underflow; /* largest error of FP32 underflow */
    double peak;      /* bound of the unscaled sums and of the scales, which FP32 must also represent */
} tsr_mx_exact;

/* Rows of one operand, decoded. */
typedef struct tsr_mx_decoded {
    const double *codes; /* [rows][k]: values of codes, without scales */
    const double *t;     /* [rows][k / group] */
} tsr_mx_decoded;

/* Computes exact[i * ld + j] for row i of a and row j of w. `group` is 16 or 32 and divides k. */
void tsr_mx_exact_product(const tsr_mx_decoded *a, size_t m, const tsr_mx_decoded *w, size_t n, size_t k, size_t group,
                          tsr_mx_exact *exact, size_t ld);

/* Returns the largest error of a result of kernels/cpu/mx_gemm.h, |result - exact->value|, rounded to `out`:
 *
 *   1.01 r 2^-24 mass, with r = tsr_mx_gemm_roundings, plus underflow and half a step of `out`
 *
 * The mean square error assumes that each of r roundings is uniformly distributed over half a step at the current sum.
 * The expected square of that sum is at most `squares` plus the square of the result, which gives
 * r 2^-48 / 3 (squares + value^2). */
double tsr_mx_bound(const tsr_mx_exact *exact, tsr_out out, size_t k, size_t group);
double tsr_mx_variance(const tsr_mx_exact *exact, tsr_out out, size_t k, size_t group);

/* Returns true if Inf or NaN is allowed as the result. */
bool tsr_mx_may_overflow(const tsr_mx_exact *exact, tsr_out out, size_t k, size_t group);
