/* Declares kernels that decode rows of int4 codes in groups, and columns of codes.
 *
 * The functions allocate nothing, cannot fail and are thread-safe; every variant gives the same bits. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* y = (nibble - 8 - zero[i]) * scale[i] for the n columns of a row in groups of `group`, the last of which may have
 * fewer. The difference is exact, followed by the IEEE FP32 product, then for 16 bits one rounding to nearest even. A
 * byte has two nibbles, the even column in the lower one; `group` is even, or n is not larger. Zeros are integers
 * between -8 and 8, all 0 if `zero` is NULL; scales are finite. */
typedef void tsr_decode_int4_bf16_fn(const uint8_t *packed, size_t n, size_t group, const float *scale,
                                     const float *zero, uint16_t *y);
typedef void tsr_decode_int4_f16_fn(const uint8_t *packed, size_t n, size_t group, const float *scale,
                                    const float *zero, uint16_t *y);
typedef void tsr_decode_int4_f32_fn(const uint8_t *packed, size_t n, size_t group, const float *scale,
                                    const float *zero, float *y);

/* y[i] = ((words[i] >> shift & mask) - zero[i]) * scale[i], in the same arithmetic; mask is 15 or 255. */
typedef void tsr_decode_column_f32_fn(const uint32_t *words, size_t n, unsigned shift, uint32_t mask,
                                      const float *scale, const float *zero, float *y);

/* Converts numbers, not NaN, to BF16 or F16, to nearest even. */
typedef void tsr_narrow_bf16_fn(const float *x, size_t n, uint16_t *y);
typedef void tsr_narrow_f16_fn(const float *x, size_t n, uint16_t *y);

/* Returns the largest of the numbers' bits, or 0 for none. They are those of the largest number, or above those of Inf
 * if there is a NaN or a number with a sign, including -0. */
typedef uint32_t tsr_largest_bits_fn(const float *x, size_t n);
