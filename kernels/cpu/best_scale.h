/* Declares kernels that find the scale of a group with the smallest squared error.
 *
 * The loss of a scale is the sum of w * (x - v * t)^2 over the group, where v is the value of the code that x gets with
 * this scale, t the value of the scale, and w the weight of the column. v * t is exact in FP64. The difference, its
 * square, the product with w and the sum, in the order of the columns, are FP64 operations.
 *
 * A search returns the candidate of the smallest loss. Of equal losses it prefers the given scale, then the smallest
 * candidate. Variants leave out candidates that cannot be the result, and give the same bits. The functions allocate
 * nothing, cannot fail and are thread-safe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Candidates for the scales of groups of E2M1 or E4M3 codes: the bytes least .. most. */
typedef struct tsr_best_groups {
    size_t group;   /* 16 or 32 columns */
    bool e4m3;      /* codes are E4M3; otherwise E2M1 */
    bool e8m0;      /* scales are E8M0; otherwise e4m3 with a global scale */
    const float *t; /* t[i] of all 256 bytes; those of candidates are finite, positive and do not decrease */
    int least, most;
} tsr_best_groups;

/* Replaces scales[i], a byte, by the best candidate for group i. x has n finite elements, which fill whole groups. A
 * group of zeros keeps its scale. weight[j], finite and not negative, weights the error of x[j]; NULL: all are 1. */
typedef void tsr_best_groups_fn(const float *x, const float *weight, size_t n, const tsr_best_groups *candidates,
                                uint8_t *scales);

/* Candidates for the scale and zero point of a group of int4 codes: all positive finite numbers of the stored type,
 * with zero point 0 or all from -8 to 7. code = round(clamp(x / scale + zero, -8, 7)) as in int_quant.h. */
typedef struct tsr_best_int4 {
    bool f16;         /* scales are stored as F16; otherwise as BF16 */
    bool zero_points; /* -8 .. 7; otherwise 0 */
    bool away;        /* ties round away from zero; otherwise to even */
} tsr_best_int4;

/* Returns the floats of scratch for a group of n elements. */
#define TSR_BEST_INT4_SCRATCH(n) (8 * (n) + 128)

/* Replaces *scale and *zero by the best candidate for a group of n finite elements. Of equal losses it prefers the
 * given pair, then the smallest scale, then the smallest zero point. The given scale is a number of the stored type,
 * and at least 2^-8 of the largest |x|. A group whose |x| or weights are all 0 keeps the given pair. `weight` as
 * above. */
typedef void tsr_best_int4_fn(const float *x, const float *weight, size_t n, const tsr_best_int4 *candidates,
                              float *scratch, float *scale, float *zero);

/* Replaces *scale by the best candidate for a block of E4M3 codes. Candidates are the positive BF16 numbers, or the
 * powers of two from 2^-126, whose largest code is finite in BF16. x is finite, [rows, cols]; weight, [cols], belongs
 * to its columns. The loss is added row by row. A block whose |x| or weights are all 0 keeps its scale. */
typedef void tsr_best_fp8_fn(const float *x, const float *weight, size_t rows, size_t cols, bool bf16, float *scale);

/* The bits, as BF16, of the largest candidate: 448 times it is below 2^128 (1 - 2^-9). */
#define TSR_BEST_FP8_MOST(bf16) ((bf16) ? 0x7B11 : 0x7B00)
