/* Declares the quantization of BF16 activations to e4m3 or int8.
 *
 * x and codes are dense, [m][k]; x must be finite. The functions allocate nothing, cannot fail and are thread-safe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Quantizes to e4m3 with a scale per `group_rows` tokens by `group_cols` channels: 1 x 128 is DeepSeek's; 128 x 128 and
 * others are CUTLASS's blockwise and M-granular scalings. scale = amax / 448 over the group's real elements, 1 when
 * amax is 0; code = e4m3 of the FP32 quotient. The scale is written for every token of its group, so that a product
 * need not know the groups: scales [ceil(k / group_cols)][ld_scales]. */
void tsr_quantize_tokens_e4m3(const uint16_t *x, size_t m, size_t k, size_t group_rows, size_t group_cols,
                              uint8_t *codes, float *scales, size_t ld_scales);

/* Quantizes to int8 with a scale and a zero point (azp) per token or, with `per_tensor`, one pair for all: code =
 * clamp(round(x / scale) + azp, -128, 127), and x is near scale * (code - azp). Symmetric: scale = amax / 127, azp = 0.
 * Otherwise, over the range from min(x, 0) to max(x, 0): scale = (max - min) / 255, azp = round(-128 - min / scale). A
 * scale of 0 becomes 1. scales and azp are [m]. */
void tsr_quantize_tokens_int8(const uint16_t *x, size_t m, size_t k, bool per_tensor, bool symmetric, int8_t *codes,
                              float *scales, int32_t *azp);

/* Quantizes to int8 with a given scale and zero point: n codes, clamp(round(x / scale) + azp, -128, 127). */
void tsr_quantize_static_int8(const uint16_t *x, size_t n, float scale, int32_t azp, int8_t *codes);
