/* Conversions between numbers and bits: FP32, BF16, F16, E4M3, E2M1 and E8M0, one value at a time.
 *
 * These functions are the definitions for all of Tessera except verify/values, which has its own decoder. They are
 * inline, so that loops over them are vectorized. "From" rounds to nearest, ties to even; "to" and "f32_from" are
 * exact.
 *
 * E4M3 is OCP float8_e4m3fn: 1 sign, 4 exponent (bias 7) and 3 mantissa bits; the largest value is 448 (0x7E), NaN is
 * 0x7F or 0xFF, and there is no infinity. E2M1 has the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6, and a sign in bit 3.
 * E8M0 is the scale of the OCP MX formats: an exponent with bias 127. */
#pragma once

#include <stdint.h>
#include <string.h>

#define TSR_E4M3_MAX      448.0f
#define TSR_FP32_INF_BITS 0x7F800000u
#define TSR_FP32_NAN_BITS 0x7FC00000u /* quiet NaN without payload */
#define TSR_FP32_ABS_MASK 0x7FFFFFFFu

static inline uint32_t tsr_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float tsr_f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float tsr_f32_from_bf16(uint16_t x)
{
    return tsr_f32_from_bits((uint32_t)x << 16);
}

/* NaN payloads are kept and made quiet, as hardware does. */
static inline float tsr_f32_from_f16(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16, magnitude = x & 0x7FFFu, placed = sign | magnitude << 13;
    if (magnitude > 0x7C00)
        return tsr_f32_from_bits(placed | TSR_FP32_NAN_BITS);
    if (magnitude == 0x7C00)
        return tsr_f32_from_bits(sign | TSR_FP32_INF_BITS);
    return tsr_f32_from_bits(placed) * 0x1p112f; /* the shifted bits are the value times 2^-112 */
}

/* 2^(e - 127): 0 is the subnormal 2^-127, 255 is NaN. */
static inline float tsr_f32_from_e8m0(uint8_t e)
{
    return tsr_f32_from_bits(e == 0 ? 1u << 22 : e == 255 ? TSR_FP32_NAN_BITS : (uint32_t)e << 23);
}

/* NaN becomes 0x7FC0 with x's sign. */
static inline uint16_t tsr_bf16_from_f32(float x)
{
    const uint32_t bits = tsr_f32_bits(x);
    if ((bits & TSR_FP32_ABS_MASK) > TSR_FP32_INF_BITS)
        return (uint16_t)((bits >> 16 & 0x8000) | 0x7FC0);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Infinities and NaN stay so. To avoid double rounding, x is first rounded to FP32 by round-to-odd, which preserves
 * on which side of a BF16 tie it lies. */
static inline uint16_t tsr_bf16_from_f64(double x)
{
    const float f = (float)x;
    uint32_t bits = tsr_f32_bits(f);
    if ((double)f != x) {
        if (__builtin_fabs((double)f) > __builtin_fabs(x))
            bits--;
        bits |= 1;
    }
    return tsr_bf16_from_f32(tsr_f32_from_bits(bits));
}

/* NaN becomes 0x7E00 with x's sign. */
static inline uint16_t tsr_f16_from_f32(float x)
{
    const uint32_t bits = tsr_f32_bits(x), magnitude = bits & TSR_FP32_ABS_MASK, sign = bits >> 16 & 0x8000;
    if (magnitude > TSR_FP32_INF_BITS)
        return (uint16_t)(sign | 0x7E00);
    if (magnitude >= 0x477FF000) /* 65520, half way to the next power of two, and above */
        return (uint16_t)(sign | 0x7C00);
    if (magnitude < 0x38800000) /* below 2^-14: a multiple of 2^-24; adding 0.5 rounds to it */
        return (uint16_t)(sign | (tsr_f32_bits(tsr_f32_from_bits(magnitude) + 0.5f) - tsr_f32_bits(0.5f)));
    const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - (112u << 23)) >> 13);
}

/* Clamps to +-448. NaN becomes 0x7F with x's sign; -0 becomes 0x80. */
static inline uint8_t tsr_e4m3_from_f32(float x)
{
    const uint8_t sign = (uint8_t)(tsr_f32_bits(x) >> 31 << 7);
    const uint32_t a = tsr_f32_bits(x) & TSR_FP32_ABS_MASK;
    if (a > TSR_FP32_INF_BITS)
        return sign | 0x7F;
    if (a >= tsr_f32_bits(TSR_E4M3_MAX))
        return sign | 0x7E;
    /* At 2^14 an FP32 ulp is 2^-9, the subnormal step, so the addition rounds. 8 steps are the code of 2^-6. */
    if (a < tsr_f32_bits(0x1p-6f))
        return (uint8_t)(sign | (tsr_f32_bits(tsr_f32_from_bits(a) + 0x1p14f) - tsr_f32_bits(0x1p14f)));
    /* Keep 3 of 23 mantissa bits; a carry into the exponent gives the right code. The bias changes from 127 to 7. */
    const uint32_t odd = a >> 20 & 1;
    return (uint8_t)(sign | (((a + 0x7FFFF + odd) >> 20) - (120u << 3)));
}

/* 0x7F and 0xFF give the quiet NaN with the code's sign. */
static inline float tsr_e4m3_to_f32(uint8_t code)
{
    const uint32_t sign = (uint32_t)(code & 0x80) << 24, magnitude = code & 0x7F;
    if (magnitude == 0x7F)
        return tsr_f32_from_bits(sign | TSR_FP32_NAN_BITS);
    /* Subnormals are multiples of 2^-9. The bits of normal codes, read as FP32, are the value times 2^-120. Multiplying
     * would work for both, but takes a hundred cycles if a factor is subnormal in FP32. */
    const float size = magnitude < 8 ? (float)magnitude * 0x1p-9f : tsr_f32_from_bits((magnitude << 20) + (120u << 23));
    return tsr_f32_from_bits(sign | tsr_f32_bits(size));
}

/* Clamps to +-6. The sign is kept if x is zero or rounds to zero: code 8 is -0. x must not be NaN. */
static inline uint8_t tsr_e2m1_from_f32(float x)
{
    const uint8_t sign = (uint8_t)(tsr_f32_bits(x) >> 31 << 3);
    const float a = tsr_f32_from_bits(tsr_f32_bits(x) & TSR_FP32_ABS_MASK);
    /* Counts the ties that are passed. At a tie after an odd code, x rounds to the next code, which is even. */
    return (uint8_t)(sign |
                     ((a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f)));
}

/* Only the low 4 bits of `code` are used. */
static inline float tsr_e2m1_to_f32(unsigned code)
{
    const uint32_t sign = (uint32_t)(code & 8) << 28, magnitude = code & 7;
    /* In FP32's position the code is the value times 2^-126, and 0.5 is a subnormal. */
    return tsr_f32_from_bits(sign | magnitude << 22) * 0x1p126f;
}
