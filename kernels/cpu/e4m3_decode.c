/* Decoding e4m3, defined. */
#include "kernels/cpu/e4m3_decode.h"

#include "kernels/cpu/block_fp8.h"
#include "kernels/cpu/variants.h"

#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

uint16_t tsr_bf16_from_f32(float x)
{
    const uint32_t bits = bits_of(x);
    if ((bits & 0x7FFFFFFF) > TSR_FP32_INF_BITS)
        return (uint16_t)(bits >> 16 & 0x8000) | 0x7FC0;
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* By way of an FP32 number rounded to odd, which keeps on which side of a tie the FP64 number lies. */
uint16_t tsr_bf16_from_f64(double x)
{
    float f = (float)x;
    if ((double)f != x) {
        uint32_t bits = bits_of(f);
        if (__builtin_fabs((double)f) > __builtin_fabs(x))
            bits--;
        bits |= 1;
        memcpy(&f, &bits, sizeof f);
    }
    return tsr_bf16_from_f32(f);
}

uint16_t tsr_f16_from_f32(float x)
{
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7FFFFFFF;
    const uint16_t sign = bits >> 16 & 0x8000;
    if (magnitude > TSR_FP32_INF_BITS)
        return sign | 0x7E00;
    if (magnitude >= 0x477FF000) /* 65520, half way to the next power, and all above */
        return sign | 0x7C00;
    if (magnitude < 0x38800000) { /* below 2^-14: a multiple of 2^-24, to which adding 0.5 rounds */
        float y;
        memcpy(&y, &magnitude, sizeof y);
        return sign | (uint16_t)(bits_of(y + 0.5f) - bits_of(0.5f));
    }
    const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
    return sign | (uint16_t)((rounded - (112u << 23)) >> 13);
}

static float value(uint8_t code, float scale)
{
    return tsr_e4m3_to_f32(code) * scale;
}

static bool is_nan(uint8_t code)
{
    return (code & 0x7F) == 0x7F;
}

bool tsr_decode_e4m3_bf16_ref(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                              const float *scales, uint16_t *y, size_t ld)
{
    bool found = false;
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) {
            const uint8_t code = codes[r * ld_codes + c];
            found = found || is_nan(code);
            y[r * ld + c] = is_nan(code) ? (uint16_t)((code & 0x80) << 8 | 0x7FC0)
                                         : tsr_bf16_from_f32(value(code, scales[c / block_cols]));
        }
    }
    return found;
}

bool tsr_decode_e4m3_f16_ref(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                             const float *scales, uint16_t *y, size_t ld)
{
    bool found = false;
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) {
            const uint8_t code = codes[r * ld_codes + c];
            found = found || is_nan(code);
            y[r * ld + c] = is_nan(code) ? (uint16_t)((code & 0x80) << 8 | 0x7E00)
                                         : tsr_f16_from_f32(value(code, scales[c / block_cols]));
        }
    }
    return found;
}

bool tsr_decode_e4m3_f32_ref(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                             const float *scales, float *y, size_t ld)
{
    bool found = false;
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) {
            const uint8_t code = codes[r * ld_codes + c];
            found = found || is_nan(code);
            const uint32_t nan = (uint32_t)(code & 0x80) << 24 | 0x7FC00000;
            const float x = value(code, scales[c / block_cols]);
            memcpy(&y[r * ld + c], is_nan(code) ? (const void *)&nan : &x, sizeof x);
        }
    }
    return found;
}
