/* Error sums of MXFP4, MXFP8 and NVFP4 codes for each group of a row, on the CPU. mx_codes.h describes the code layout.
 * The functions allocate nothing, cannot fail and are thread-safe; every variant gives the same bits. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The errors are in units of a group's t, in FP32: v is the code's value, q = (x * k) * (1 / (u * k)), e = q - v. Here
 * u is t, or 2^-149 where t is 0, and k is 2^64 if u < 2^-100, else 1. q is within an ulp of the quotient, and exact
 * for powers of two.
 *
 * Each sum of a group is computed from pairs, p[l] = fma(b, b', a * a') for the columns 2 l and 2 l + 1. In groups of
 * 32, p[l + 8] is added to p[l]. The remaining 8 are added as ((p0 + p2) + (p1 + p3)) + ((p4 + p6) + (p5 + p7)). */
typedef struct tsr_mx_error {
    float *q2, *e2, *qv; /* sums of q * q, e * e and q * v per group, in the caller's memory */
    float largest;       /* the largest |e| * u of all */
    uint64_t nonzero;    /* number of x != 0 */
    uint64_t flushed;    /* number of x != 0 with a code of +-0 */
} tsr_mx_error;

/* x is finite; n is whole groups of 16 or 32 (E4M3: 32); t is finite and not negative. A zero has a code of +-0. */
typedef void tsr_error_e2m1_bf16_fn(const uint16_t *x, size_t n, size_t group, const float *t, const uint8_t *packed,
                                    tsr_mx_error *error);
typedef void tsr_error_e2m1_f32_fn(const float *x, size_t n, size_t group, const float *t, const uint8_t *packed,
                                   tsr_mx_error *error);
typedef void tsr_error_mxfp8_bf16_fn(const uint16_t *x, size_t n, const float *t, const uint8_t *codes,
                                     tsr_mx_error *error);
typedef void tsr_error_mxfp8_f32_fn(const float *x, size_t n, const float *t, const uint8_t *codes,
                                    tsr_mx_error *error);

/* The u and the k above. */
#define TSR_MX_UNIT(t)  ((t) == 0 ? 0x1p-149f : (t))
#define TSR_MX_BOOST(u) ((u) < 0x1p-100f ? 0x1p64f : 1.0f)
