/* Declares block FP8 kernels of the CPU: amax, e4m3 codes and the error of one block.
 *
 * All functions take row-major elements, `rows` x `cols`, with rows `ld` elements apart. Those for amax and codes
 * take a band: one row of blocks, each `block_cols` wide except the last. A variant can thus read memory in order.
 * The functions allocate nothing, keep no state, cannot fail and are thread-safe. Source and destination must not
 * overlap. Pointers need the alignment of their element type only. */
#pragma once

#include "common/float_bits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* amax[i] is the largest |x| of block i, as FP32 bits. As integers, the bits of |x| have the order of |x|, with Inf
 * and NaN above all numbers. A result >= TSR_FP32_INF_BITS means that the block has Inf or NaN. Without rows the
 * result is 0. */
typedef void tsr_amax_bf16_fn(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                              uint32_t *amax);
typedef void tsr_amax_f32_fn(const float *x, size_t rows, size_t cols, size_t ld, size_t block_cols, uint32_t *amax);

/* code = e4m3(clamp(x / scale, -448, 448)): the IEEE FP32 quotient, then round to nearest, ties to even.
 * scales[i] is that of block i and has to be finite and positive; x has to be finite, which the caller knows from amax.
 * The sign of zero is kept: -0 gives 0x80. */
typedef void tsr_encode_e4m3_bf16_fn(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                     const float *scales, uint8_t *codes, size_t ld_codes);
typedef void tsr_encode_e4m3_f32_fn(const float *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                    const float *scales, uint8_t *codes, size_t ld_codes);

/* Returns the scale of a block: amax / 448 in FP32; 1 for a block of zeros; the smallest subnormal if the quotient
 * underflows. With `power_of_two` (ue8m0) the scale is rounded up by its bits: the exponent plus one if the mantissa
 * is not 0, within 2^-126 .. 2^127. amax_bits must be below TSR_FP32_INF_BITS, else the result is undefined. */
float tsr_e4m3_scale(uint32_t amax_bits, bool power_of_two);

/* Converts F16 to FP32 exactly. NaN payloads are those of the hardware (quieted). */
typedef void tsr_widen_f16_fn(const uint16_t *x, size_t n, float *out);

/* Error sums of one quantized block.
 *
 * In FP32: u = x * k, f = scale * k, v = value(code), e = fma(-v, f, u). k is a power of two, usually 1
 * (error_unit.h). Sums of u * u, e * e and u * v are 16 partial sums in FP32, each term added by a fused
 * multiply-add, rows and columns in order. The index of a partial sum is column / 8 % 4 * 4 + column % 4. The
 * partial sums are then added in FP64 in the order 0..15, and divided by f * f, f * f and f. The results are in
 * units of the scale. */
typedef struct tsr_block_error {
    double sum_q2;    /* sum of (x / scale)^2 */
    double sum_e2;    /* sum of (x / scale - v)^2 */
    double sum_qv;    /* sum of x / scale * v */
    float max_e;      /* the largest |e|, over f; 0 for an empty block */
    uint32_t max_row; /* position of max_e, the first in row-major order */
    uint32_t max_col;
    uint32_t saturated; /* number of |u| > 464 * f, which clamping changed because they round to more than 448 */
    uint32_t flushed;   /* number of x != 0 with a code of +-0 */
    uint32_t nonzero;   /* number of x != 0 */
} tsr_block_error;

typedef void tsr_error_e4m3_bf16_fn(const uint16_t *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes,
                                    size_t ld_codes, float scale, tsr_block_error *error);
typedef void tsr_error_e4m3_f32_fn(const float *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes,
                                   size_t ld_codes, float scale, tsr_block_error *error);

/* Quantizes a band in one pass: amax[i] as above, scales[i] = tsr_e4m3_scale(amax[i]), codes, and their errors
 * unless `errors` is NULL. If amax[i] means Inf or NaN, the scale, codes and errors of block i are undefined. */
typedef void tsr_quantize_e4m3_bf16_fn(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                       bool power_of_two, uint32_t *amax, float *scales, uint8_t *codes,
                                       size_t ld_codes, tsr_block_error *errors);
