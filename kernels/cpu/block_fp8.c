/* Owns the definitions: block FP8 in plain C, one value at a time, and e4m3 itself. */
#include "kernels/cpu/block_fp8.h"

#include "kernels/cpu/variants.h"

#include <math.h>
#include <string.h>

#define ABS_MASK 0x7FFFFFFFu

enum { LANES = 32 }; /* of the error sums: column % LANES */

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float widen_bf16(uint16_t x)
{
    return float_of((uint32_t)x << 16);
}

uint8_t tsr_e4m3_from_f32(float x)
{
    const uint8_t sign = (uint8_t)(bits_of(x) >> 31 << 7);
    const uint32_t a = bits_of(x) & ABS_MASK;
    if (a > TSR_FP32_INF_BITS) {
        return sign | 0x7F;
    }
    if (a >= bits_of(TSR_E4M3_MAX)) {
        return sign | 0x7E;
    }
    if (a < bits_of(0x1p-6f)) {
        /* At 2^14 an FP32 ulp is 2^-9, the subnormal step: the addition rounds. 8 steps are the code of 2^-6. */
        return (uint8_t)(sign | (bits_of(float_of(a) + 0x1p14f) - bits_of(0x1p14f)));
    }
    /* Keep 3 of 23 mantissa bits; a carry into the exponent is what it should be. Bias 127 becomes 7. */
    const uint32_t odd = a >> 20 & 1;
    return (uint8_t)(sign | (((a + 0x7FFFF + odd) >> 20) - (120u << 3)));
}

float tsr_e4m3_to_f32(uint8_t code)
{
    const uint32_t sign = (uint32_t)(code & 0x80) << 24;
    const uint32_t magnitude = code & 0x7F;
    if (magnitude == 0x7F) {
        return float_of(sign | 0x7FC00000u);
    }
    /* In FP32's position the code reads 2^120 too small, subnormals included. */
    return float_of(sign | magnitude << 20) * 0x1p120f;
}

void tsr_amax_bf16_ref(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols, uint32_t *amax)
{
    for (size_t row = 0; row == 0 || row < rows; row++) {
        for (size_t col = 0; col < cols; col++) {
            const uint32_t a = rows == 0 ? 0 : (x[row * ld + col] & 0x7FFFu) << 16;
            uint32_t *largest = &amax[col / block_cols];
            *largest = (row == 0 && col % block_cols == 0) || a > *largest ? a : *largest;
        }
    }
}

void tsr_amax_f32_ref(const float *x, size_t rows, size_t cols, size_t ld, size_t block_cols, uint32_t *amax)
{
    for (size_t row = 0; row == 0 || row < rows; row++) {
        for (size_t col = 0; col < cols; col++) {
            const uint32_t a = rows == 0 ? 0 : (bits_of(x[row * ld + col]) & ABS_MASK);
            uint32_t *largest = &amax[col / block_cols];
            *largest = (row == 0 && col % block_cols == 0) || a > *largest ? a : *largest;
        }
    }
}

void tsr_encode_e4m3_bf16_ref(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                              const float *scales, uint8_t *codes, size_t ld_codes)
{
    for (size_t row = 0; row < rows; row++) {
        for (size_t col = 0; col < cols; col++)
            codes[row * ld_codes + col] = tsr_e4m3_from_f32(widen_bf16(x[row * ld + col]) / scales[col / block_cols]);
    }
}

void tsr_encode_e4m3_f32_ref(const float *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                             const float *scales, uint8_t *codes, size_t ld_codes)
{
    for (size_t row = 0; row < rows; row++) {
        for (size_t col = 0; col < cols; col++)
            codes[row * ld_codes + col] = tsr_e4m3_from_f32(x[row * ld + col] / scales[col / block_cols]);
    }
}

float tsr_e4m3_scale(uint32_t amax_bits, bool power_of_two)
{
    if (amax_bits == 0)
        return 1.0f;
    float scale = float_of(amax_bits) / TSR_E4M3_MAX;
    if (scale == 0) /* only F32 sources reach below 448 times the smallest subnormal */
        scale = float_of(1);
    if (!power_of_two)
        return scale;
    const uint32_t exponent = (bits_of(scale) >> 23) + ((bits_of(scale) & 0x7FFFFF) != 0);
    return float_of((exponent < 1 ? 1 : exponent > 254 ? 254 : exponent) << 23);
}

void tsr_quantize_e4m3_bf16_ref(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                bool power_of_two, uint32_t *amax, float *scales, uint8_t *codes, size_t ld_codes)
{
    tsr_amax_bf16_ref(x, rows, cols, ld, block_cols, amax);
    for (size_t col = 0, i = 0; col < cols; col += block_cols, i++)
        scales[i] = tsr_e4m3_scale(amax[i], power_of_two);
    tsr_encode_e4m3_bf16_ref(x, rows, cols, ld, block_cols, scales, codes, ld_codes);
}

void tsr_widen_f16_ref(const uint16_t *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t sign = (uint32_t)(x[i] & 0x8000) << 16;
        const uint32_t magnitude = x[i] & 0x7FFFu;
        const uint32_t placed = sign | magnitude << 13;
        if (magnitude > 0x7C00) {
            out[i] = float_of(placed | 0x7FC00000u);
        } else if (magnitude == 0x7C00) {
            out[i] = float_of(sign | TSR_FP32_INF_BITS);
        } else {
            out[i] = float_of(placed) * 0x1p112f;
        }
    }
}

typedef struct error_sums {
    float k, reciprocal;
    float q2[LANES], e2[LANES], qv[LANES];
    tsr_block_error *error;
} error_sums;

static error_sums begin_error(float scale, tsr_block_error *error)
{
    const float k = scale < 0x1p-100f ? 0x1p64f : 1.0f;
    *error = (tsr_block_error){0};
    return (error_sums){.k = k, .reciprocal = 1.0f / (scale * k), .error = error};
}

static void add_error(error_sums *sums, float x, uint8_t code, size_t row, size_t col)
{
    const float q = x * sums->k * sums->reciprocal;
    const float v = tsr_e4m3_to_f32(code);
    const float e = q - v;
    const size_t lane = col % LANES;
    tsr_block_error *error = sums->error;
    sums->q2[lane] += q * q;
    sums->e2[lane] += e * e;
    sums->qv[lane] += q * v;
    if (fabsf(e) > error->max_e) {
        error->max_e = fabsf(e);
        error->max_row = (uint32_t)row;
        error->max_col = (uint32_t)col;
    }
    error->saturated += fabsf(q) > 464.0f;
    error->flushed += x != 0 && (code & 0x7F) == 0;
    error->nonzero += x != 0;
}

static void finish_error(const error_sums *sums)
{
    for (size_t lane = 0; lane < LANES; lane++) {
        sums->error->sum_q2 += sums->q2[lane];
        sums->error->sum_e2 += sums->e2[lane];
        sums->error->sum_qv += sums->qv[lane];
    }
}

void tsr_error_e4m3_bf16_ref(const uint16_t *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes,
                             size_t ld_codes, float scale, tsr_block_error *error)
{
    error_sums sums = begin_error(scale, error);
    for (size_t row = 0; row < rows; row++) {
        for (size_t col = 0; col < cols; col++) {
            add_error(&sums, widen_bf16(x[row * ld + col]), codes[row * ld_codes + col], row, col);
        }
    }
    finish_error(&sums);
}

void tsr_error_e4m3_f32_ref(const float *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes, size_t ld_codes,
                            float scale, tsr_block_error *error)
{
    error_sums sums = begin_error(scale, error);
    for (size_t row = 0; row < rows; row++) {
        for (size_t col = 0; col < cols; col++) {
            add_error(&sums, x[row * ld + col], codes[row * ld_codes + col], row, col);
        }
    }
    finish_error(&sums);
}
