/* Declares kernels that encode weights to int8 and int4, and measure the errors.
 *
 *     q = x / scale (the IEEE FP32 quotient);  code = round(clamp(q + zero, low, high))
 *     a reader gets (code - zero) * scale
 *
 * as in compressed-tensors (quantization/lifecycle/forward_helpers.py). Rounding is to nearest, with ties to even or
 * away from zero (FasterTransformer, C's round). Every variant gives the same bits. The functions are thread-safe and
 * cannot fail. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Encoding of one group: value = (code - zero) * scale. */
typedef struct tsr_int_code {
    float scale; /* finite, positive */
    float zero;  /* an integer between low and high */
    float low, high;
} tsr_int_code;

/* Encoding of one row. scale[i], zero[i] (as in tsr_int_code) and amax[i] belong to group i of its columns; the other
 * members apply to all groups. */
typedef struct tsr_int_row {
    const float *scale;
    const float *zero;    /* NULL: all are 0 */
    const uint32_t *amax; /* the largest |x| of the group, or more, as FP32 bits */
    float low, high;      /* -8 and 7, or -128 and 127 */
    bool away;            /* ties round away from zero */
    bool bf16;            /* the quotient of a BF16 element is first rounded to BF16; unused for FP32 */
} tsr_int_row;

/* amax[i] is the largest |x| of columns [i * group, (i + 1) * group) of a row, as FP32 bits, which are ordered like the
 * numbers; Inf and NaN are the largest. This and the next two functions may prefetch the next row, which is assumed to
 * follow in memory. */
typedef void tsr_amax_groups_bf16_fn(const uint16_t *x, size_t cols, size_t group, uint32_t *amax);

/* low[i] is the smallest of these columns and -0; high[i] is the largest of them and 0. Inf is kept; a NaN gives a NaN
 * of its sign, which is beyond Inf. */
typedef void tsr_range_groups_bf16_fn(const uint16_t *x, size_t cols, size_t group, float *low, float *high);

/* Encodes a row of `cols` finite elements (two's complement) in groups of `group` columns; the last group may have
 * fewer. */
typedef void tsr_encode_int_bf16_fn(const uint16_t *x, size_t cols, size_t group, const tsr_int_row *row,
                                    int8_t *codes);
typedef void tsr_encode_int_f32_fn(const float *x, size_t cols, size_t group, const tsr_int_row *row, int8_t *codes);

/* Error sums of integer codes, in FP32: u = x * k, f = scale * k, v = code - zero, e = fma(-v, f, u). k is a power
 * of two, usually 1 (error_unit.h).
 *
 * Sums of u * u, e * e and u * v are 16 partial sums in blocks of 4096 elements, each term added by a fused
 * multiply-add. The index of a partial sum is index / 8 % 4 * 4 + index % 4. The partial sums of a block are added
 * in FP64 as a tree (l and l + 8, then l and l + 4, ... l + 1), and the blocks in order. The results are divided by
 * f * f, f * f and f, and are in units of the scale. */
typedef struct tsr_int_error {
    double sum_q2, sum_e2, sum_qv;
    float max_e;               /* the largest |e|, over f */
    uint64_t nonzero, flushed; /* number of x != 0, and of those with v == 0 */
    /* Number of u * (1 / f) + zero that are more than half a step beyond low or high, which clamping changed. */
    uint64_t saturated;
} tsr_int_error;

/* Writes the error sums of each group of a row of `cols` finite elements, for the codes that tsr_encode_int_bf16_fn
 * makes. Of `row` only scale, zero, low and high are read. */
typedef void tsr_error_int_bf16_fn(const uint16_t *x, size_t cols, size_t group, const tsr_int_row *row,
                                   const int8_t *codes, tsr_int_error *errors);
typedef void tsr_error_int_f32_fn(const float *x, size_t cols, size_t group, const tsr_int_row *row,
                                  const int8_t *codes, tsr_int_error *errors);

/* Returns the first position in a group of n elements with the largest |e| of `error`. The elements are BF16, or
 * FP32 if bf16 is NULL. */
size_t tsr_int_error_at(const uint16_t *bf16, const float *f32, size_t n, const tsr_int_code *code, const int8_t *codes,
                        const tsr_int_error *error);

/* Converts BF16 to FP32 exactly. */
typedef void tsr_widen_bf16_fn(const uint16_t *x, size_t n, float *out);

/* Returns the least and the largest of n elements and 0. Any NaN makes both NaN. */
typedef void tsr_range_f32_fn(const float *x, size_t n, float *low, float *high);

/* Returns the sum of n codes: azp_adj of one output channel (vLLM Epilogues.md). 128 * n must fit into int32. */
typedef int32_t tsr_sum_codes_fn(const int8_t *codes, size_t n);
