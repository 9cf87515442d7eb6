/* Defines the quantization of activations. */
#include "kernels/cpu/quantize_tokens.h"

#include "common/float_bits.h"
#include "kernels/cpu/block_fp8.h"

#include <math.h>

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void quantize_group(const uint16_t *x, size_t rows, size_t cols, size_t k, uint8_t *codes, float *scale)
{
    uint32_t amax = 0;
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < cols; j++) {
            const uint32_t size = (uint32_t)(x[i * k + j] & 0x7FFF) << 16;
            amax = size > amax ? size : amax;
        }
    }
    *scale = tsr_e4m3_scale(amax, false);
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < cols; j++)
            codes[i * k + j] = tsr_e4m3_from_f32(tsr_f32_from_bf16(x[i * k + j]) / *scale);
    }
}

void tsr_quantize_tokens_e4m3(const uint16_t *x, size_t m, size_t k, size_t group_rows, size_t group_cols,
                              uint8_t *codes, float *scales, size_t ld_scales)
{
    for (size_t row = 0; row < m; row += group_rows) {
        const size_t rows = least(group_rows, m - row);
        for (size_t col = 0; col < k; col += group_cols) {
            float *const to = scales + col / group_cols * ld_scales + row;
            const size_t at = row * k + col;
            quantize_group(x + at, rows, least(group_cols, k - col), k, codes + at, to);
            for (size_t i = 1; i < rows; i++)
                to[i] = to[0];
        }
    }
}

void tsr_quantize_static_int8(const uint16_t *x, size_t n, float scale, int32_t azp, int8_t *codes)
{
    for (size_t i = 0; i < n; i++) {
        const float code = rintf(tsr_f32_from_bf16(x[i]) / scale) + (float)azp;
        codes[i] = (int8_t)fminf(fmaxf(code, -128), 127);
    }
}

static void quantize_tokens(const uint16_t *x, size_t n, bool symmetric, int8_t *codes, float *scale, int32_t *azp)
{
    float low = 0, high = 0;
    for (size_t i = 0; i < n; i++) {
        low = fminf(low, tsr_f32_from_bf16(x[i]));
        high = fmaxf(high, tsr_f32_from_bf16(x[i]));
    }
    *scale = symmetric ? fmaxf(-low, high) / 127 : high / 255 - low / 255;
    if (!(*scale > 0))
        *scale = 1;
    *azp = symmetric ? 0 : (int32_t)rintf(-128 - low / *scale);
    tsr_quantize_static_int8(x, n, *scale, *azp, codes);
}

void tsr_quantize_tokens_int8(const uint16_t *x, size_t m, size_t k, bool per_tensor, bool symmetric, int8_t *codes,
                              float *scales, int32_t *azp)
{
    const size_t tokens = per_tensor ? m : 1; /* tokens that share a scale */
    for (size_t i = 0; i < m; i += tokens) {
        quantize_tokens(x + i * k, tokens * k, symmetric, codes + i * k, &scales[i], &azp[i]);
        for (size_t t = 1; t < tokens; t++) {
            scales[i + t] = scales[i];
            azp[i + t] = azp[i];
        }
    }
}
