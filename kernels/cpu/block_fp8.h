/* Block FP8 on the CPU: amax, e4m3 codes and the error of one block.
 *
 * All functions take row-major elements, `rows` x `cols`, whose rows are `ld` elements apart. Those for amax and codes
 * take a band, which is one row of blocks, each `block_cols` wide except the last; so a variant can read memory in the
 * order in which it lies. They allocate nothing, keep no state, cannot fail and are thread-safe. Source and destination
 * must not overlap. Pointers need the alignment of their element type only.
 */
#ifndef TSR_KERNELS_CPU_BLOCK_FP8_H
#define TSR_KERNELS_CPU_BLOCK_FP8_H

#include "common/float_bits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* amax[i] is the largest |x| of block i, as FP32 bits. Read as integers, the bits of |x| order like |x|, with Inf and
 * NaN above all numbers. So a result >= TSR_FP32_INF_BITS says that the block holds Inf or NaN. No rows give 0. */
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

/* The scale of a block: amax / 448 in FP32; 1 for a block of zeros; the smallest subnormal if the quotient underflows.
 * With `power_of_two` (ue8m0) it is rounded up by its bits: the exponent plus one if the mantissa is not 0, within
 * 2^-126 .. 2^127. amax_bits has to be below TSR_FP32_INF_BITS, else the result means nothing. */
float tsr_e4m3_scale(uint32_t amax_bits, bool power_of_two);

/* F16 to FP32, exact; NaN payloads as the hardware gives them (quieted). */
typedef void tsr_widen_f16_fn(const uint16_t *x, size_t n, float *out);

/* What quantizing one block cost.
 *
 * In FP32: u = x * k, f = scale * k, v = value(code), e = fma(-v, f, u). k is a power of two, mostly 1
 * (error_unit.h). Sums of u * u, e * e and u * v run in FP32 over 16 lanes, each term added by a fused multiply-add, rows
 * and columns in order; the lane is column / 8 % 4 * 4 + column % 4. Then the lanes are added in FP64 in the order 0..15, and
 * divided by f * f, f * f and f, which makes them sums in units of the scale. */
typedef struct tsr_block_error {
    double sum_q2;    /* sum of (x / scale)^2 */
    double sum_e2;    /* sum of (x / scale - v)^2 */
    double sum_qv;    /* sum of x / scale * v */
    float max_e;      /* the largest |e|, over f; 0 for an empty block */
    uint32_t max_row; /* where it is: the first in row-major order */
    uint32_t max_col;
    uint32_t saturated; /* how many |u| > 464 * f: they would round to more than 448, so clamping moved them */
    uint32_t flushed;   /* how many x != 0 have a code of +-0 */
    uint32_t nonzero;   /* how many x != 0 */
} tsr_block_error;

typedef void tsr_error_e4m3_bf16_fn(const uint16_t *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes,
                                    size_t ld_codes, float scale, tsr_block_error *error);
typedef void tsr_error_e4m3_f32_fn(const float *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes,
                                   size_t ld_codes, float scale, tsr_block_error *error);

/* All in one pass over a band: amax[i] as above, scales[i] = tsr_e4m3_scale(amax[i]), the codes and, unless `errors` is
 * NULL, what they cost. If amax[i] says that block i holds Inf or NaN, its scale, codes and errors mean nothing. */
typedef void tsr_quantize_e4m3_bf16_fn(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                       bool power_of_two, uint32_t *amax, float *scales, uint8_t *codes,
                                       size_t ld_codes, tsr_block_error *errors);

#endif
