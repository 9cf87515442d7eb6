/* The product of operands in small groups in double precision, and how far a kernel may be from it.
 *
 * It takes values of codes and scales that verify's own decoders made (verify/weights/decode.h), and shares no arithmetic
 * with the kernels. The sum of a group is exact but for BF16 operands, where it is rounded as doubles are. */
#ifndef TSR_VERIFY_KERNELS_MX_ORACLE_H
#define TSR_VERIFY_KERNELS_MX_ORACLE_H

#include "verify/evidence/device.h"

typedef struct tsr_mx_exact {
    double value;
    double mass;      /* sum of |t_a A t_w W| */
    double squares;   /* sum over groups of their terms' squares, and of the square of their sum */
    double underflow; /* what FP32 loses below its normal numbers at most */
    double peak;      /* what the sums without scales, and the scales, cannot be above: FP32 has to hold them, too */
} tsr_mx_exact;

/* Rows of one operand, decoded. */
typedef struct tsr_mx_decoded {
    const double *codes; /* [rows][k]: values of codes, without scales */
    const double *t;     /* [rows][k / group] */
} tsr_mx_decoded;

/* exact[i * ld + j] of row i of a and row j of w; `group` is 16 or 32 and divides k. */
void tsr_mx_exact_product(const tsr_mx_decoded *a, size_t m, const tsr_mx_decoded *w, size_t n, size_t k, size_t group,
                          tsr_mx_exact *exact, size_t ld);

/* How far a result of kernels/cpu/mx_gemm.h may be from exact->value, rounded to `out`:
 *   1.01 r 2^-24 mass, r = tsr_mx_gemm_roundings, what underflows, and half a step of `out`;
 * and the expected square of its error. There each of r roundings is evenly spread over half a step at the sum as it
 * stands, whose expected square is not above `squares` and the square of the result: r 2^-48 / 3 (squares + value^2). */
double tsr_mx_bound(const tsr_mx_exact *exact, tsr_out out, size_t k, size_t group);
double tsr_mx_variance(const tsr_mx_exact *exact, tsr_out out, size_t k, size_t group);

/* Whether Inf or NaN is no error there. */
bool tsr_mx_may_overflow(const tsr_mx_exact *exact, tsr_out out, size_t k, size_t group);

#endif
