/* Defines block FP8 in plain C, one value at a time. */
#include "kernels/cpu/block_fp8.h"

#include "common/float_bits.h"
#include "kernels/cpu/error_unit.h"
#include "kernels/cpu/variants.h"

#include <math.h>

enum { LANES = 16 }; /* partial sums of the error sums */

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
            const uint32_t a = rows == 0 ? 0 : (tsr_f32_bits(x[row * ld + col]) & TSR_FP32_ABS_MASK);
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
            codes[row * ld_codes + col] =
                tsr_e4m3_from_f32(tsr_f32_from_bf16(x[row * ld + col]) / scales[col / block_cols]);
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
    float scale = tsr_f32_from_bits(amax_bits) / TSR_E4M3_MAX;
    if (scale == 0) /* only F32 sources can be that small */
        scale = tsr_f32_from_bits(1);
    if (!power_of_two)
        return scale;
    const uint32_t exponent = (tsr_f32_bits(scale) >> 23) + ((tsr_f32_bits(scale) & 0x7FFFFF) != 0);
    return tsr_f32_from_bits((exponent < 1 ? 1 : exponent > 254 ? 254 : exponent) << 23);
}

void tsr_widen_f16_ref(const uint16_t *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = tsr_f32_from_f16(x[i]);
}

typedef struct error_sums {
    float k, f;
    float u2[LANES], e2[LANES], uv[LANES];
    tsr_block_error *error;
} error_sums;

static error_sums begin_error(float scale, tsr_block_error *error)
{
    const float k = tsr_error_boost(scale);
    *error = (tsr_block_error){0};
    return (error_sums){.k = k, .f = scale * k, .error = error};
}

static void add_error(error_sums *sums, float x, uint8_t code, size_t row, size_t col)
{
    const float u = x * sums->k, v = tsr_e4m3_to_f32(code), e = fmaf(-v, sums->f, u);
    const size_t lane = col / 8 % 4 * 4 + col % 4;
    tsr_block_error *error = sums->error;
    sums->u2[lane] = fmaf(u, u, sums->u2[lane]);
    sums->e2[lane] = fmaf(e, e, sums->e2[lane]);
    sums->uv[lane] = fmaf(u, v, sums->uv[lane]);
    if (fabsf(e) > error->max_e) {
        error->max_e = fabsf(e);
        error->max_row = (uint32_t)row;
        error->max_col = (uint32_t)col;
    }
    error->saturated += fabsf(u) > 464.0f * sums->f;
    error->flushed += x != 0 && (code & 0x7F) == 0;
    error->nonzero += x != 0;
}

static void finish_error(const error_sums *sums)
{
    const double f = (double)sums->f;
    tsr_block_error *error = sums->error;
    for (size_t lane = 0; lane < LANES; lane++) {
        error->sum_q2 += (double)sums->u2[lane];
        error->sum_e2 += (double)sums->e2[lane];
        error->sum_qv += (double)sums->uv[lane];
    }
    error->sum_q2 /= f * f;
    error->sum_e2 /= f * f;
    error->sum_qv /= f;
    error->max_e /= sums->f;
}

void tsr_error_e4m3_bf16_ref(const uint16_t *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes,
                             size_t ld_codes, float scale, tsr_block_error *error)
{
    error_sums sums = begin_error(scale, error);
    for (size_t row = 0; row < rows; row++) {
        for (size_t col = 0; col < cols; col++) {
            add_error(&sums, tsr_f32_from_bf16(x[row * ld + col]), codes[row * ld_codes + col], row, col);
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

void tsr_quantize_e4m3_bf16_ref(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                bool power_of_two, uint32_t *amax, float *scales, uint8_t *codes, size_t ld_codes,
                                tsr_block_error *errors)
{
    tsr_amax_bf16_ref(x, rows, cols, ld, block_cols, amax);
    for (size_t col = 0, i = 0; col < cols; col += block_cols, i++)
        scales[i] = tsr_e4m3_scale(amax[i], power_of_two);
    tsr_encode_e4m3_bf16_ref(x, rows, cols, ld, block_cols, scales, codes, ld_codes);
    for (size_t col = 0, i = 0; errors != NULL && col < cols; col += block_cols, i++)
        tsr_error_e4m3_bf16_ref(x + col, rows, cols - col < block_cols ? cols - col : block_cols, ld, codes + col,
                                ld_codes, scales[i], &errors[i]);
}
