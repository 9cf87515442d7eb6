/* Declares operations on four or eight floats that several NEON kernels share. */
#pragma once

#include "kernels/cpu/always_inline.h"

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* 8 columns: the first four, and the others. */
typedef struct floats8 {
    float32x4_t part[2];
} floats8;

/* 8 columns of which the first n are read; the others are zeros. */
typedef floats8 load8_fn(const void *x, size_t n);

ALWAYS_INLINE floats8 widened(uint16x8_t words)
{
    return (floats8){{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(words), 16)),
                      vreinterpretq_f32_u32(vshll_high_n_u16(words, 16))}};
}

ALWAYS_INLINE floats8 load8_bf16(const void *x, size_t n)
{
    uint16_t buffer[8] = {0};
    if (n < 8) {
        memcpy(buffer, x, n * sizeof *buffer);
        x = buffer;
    }
    return widened(vld1q_u16(x));
}

ALWAYS_INLINE floats8 load8_f32(const void *x, size_t n)
{
    float buffer[8] = {0};
    if (n < 8) {
        memcpy(buffer, x, n * sizeof *buffer);
        x = buffer;
    }
    return (floats8){{vld1q_f32(x), vld1q_f32((const float *)x + 4)}};
}

/* Computes tsr_e4m3_from_f32 for 4 finite quotients or infinities. */
ALWAYS_INLINE uint32x4_t e4m3_of(float32x4_t q)
{
    const float32x4_t a = vminq_f32(vdupq_n_f32(448.0f), vabsq_f32(q)), step = vdupq_n_f32(0x1p14f);
    const uint32x4_t bits = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(bits, 20), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFFF)), odd);
    const uint32x4_t normal = vsubq_u32(vshrq_n_u32(rounded, 20), vdupq_n_u32(120 << 3));
    const uint32x4_t steps = vsubq_u32(vreinterpretq_u32_f32(vaddq_f32(a, step)), vreinterpretq_u32_f32(step));
    const uint32x4_t code = vbslq_u32(vcltq_f32(a, vdupq_n_f32(0x1p-6f)), steps, normal);
    return vorrq_u32(code, vshlq_n_u32(vshrq_n_u32(vreinterpretq_u32_f32(q), 31), 7));
}

/* Divides 8 columns by one divisor, to e4m3. */
ALWAYS_INLINE uint8x8_t divided_e4m3(floats8 x, float32x4_t divisor)
{
    const uint16x4_t first = vmovn_u32(e4m3_of(vdivq_f32(x.part[0], divisor)));
    return vmovn_u16(vmovn_high_u32(first, e4m3_of(vdivq_f32(x.part[1], divisor))));
}

/* Rounds numbers, not NaN, to the nearest BF16, ties to even. The result is in the upper half of each lane; the
 * lower half is undefined. */
ALWAYS_INLINE uint32x4_t bf16_above(float32x4_t x)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    return vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd);
}

ALWAYS_INLINE uint16x8_t bf16_of(floats8 x)
{
    return vshrn_high_n_u32(vshrn_n_u32(bf16_above(x.part[0]), 16), bf16_above(x.part[1]), 16);
}

/* Like bf16_above, as floats with a zero lower half. */
ALWAYS_INLINE float32x4_t rounded_to_bf16(float32x4_t x)
{
    return vreinterpretq_f32_u32(vandq_u32(bf16_above(x), vdupq_n_u32(0xFFFF0000u)));
}

/* The bytes of 16 words, to be looked up by codes below 16. */
typedef struct word_table {
    uint8x16_t low, high;
} word_table;

ALWAYS_INLINE word_table word_table_of(uint16x8_t first, uint16x8_t second)
{
    const uint8x16_t a = vreinterpretq_u8_u16(first), b = vreinterpretq_u8_u16(second);
    return (word_table){vuzp1q_u8(a, b), vuzp2q_u8(a, b)};
}

/* Looks up the words of 16 codes. */
ALWAYS_INLINE void look_up_words(uint8x16_t codes, const word_table *t, uint16_t *y)
{
    const uint8x16x2_t words = {{vqtbl1q_u8(t->low, codes), vqtbl1q_u8(t->high, codes)}};
    vst2q_u8((uint8_t *)y, words); /* interleaved, which makes words of the bytes */
}

/* Looks up the words of 32 or 16 codes, two to a byte, the first in the lower half. */
ALWAYS_INLINE void look_up_nibbles(const uint8_t *packed, const word_table *t, uint16_t *y)
{
    const uint8x16_t bytes = vld1q_u8(packed), even = vandq_u8(bytes, vdupq_n_u8(15)), odd = vshrq_n_u8(bytes, 4);
    look_up_words(vzip1q_u8(even, odd), t, y);
    look_up_words(vzip2q_u8(even, odd), t, y + 16);
}

ALWAYS_INLINE void look_up_16_nibbles(const uint8_t *packed, const word_table *t, uint16_t *y)
{
    const uint8x8_t bytes = vld1_u8(packed), even = vand_u8(bytes, vdup_n_u8(15)), odd = vshr_n_u8(bytes, 4);
    look_up_words(vcombine_u8(vzip1_u8(even, odd), vzip2_u8(even, odd)), t, y);
}
