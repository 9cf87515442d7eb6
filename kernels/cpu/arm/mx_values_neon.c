/* Decodes microscaling formats with NEON.
 *
 * E2M1 has 16 values, which are rounded once per group and looked up. MXFP8 is multiplied: a scale is a power of
 * two, and its product with a code is exact unless it is subnormal. */
#include "kernels/cpu/mx_values.h"

#include "kernels/cpu/arm/floats_neon.h"
#include "kernels/cpu/variants.h"

enum { MXFP8_GROUP = 32 };

void tsr_decode_e2m1_bf16_neon(const uint8_t *packed, size_t n, size_t group, const float *t, uint16_t *y)
{
    if (group % 16 != 0) {
        tsr_decode_e2m1_bf16_ref(packed, n, group, t, y);
        return;
    }
    static const float kMagnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const floats8 magnitudes = load8_f32(kMagnitudes, 8);
    for (size_t first = 0; first < n; first += group, t++) {
        const floats8 values = {{vmulq_n_f32(magnitudes.part[0], *t), vmulq_n_f32(magnitudes.part[1], *t)}};
        const uint16x8_t positive = bf16_of(values), negative = vorrq_u16(positive, vdupq_n_u16(0x8000));
        const word_table table = word_table_of(positive, negative);
        size_t i = first;
        for (; i + 32 <= first + group; i += 32)
            look_up_nibbles(packed + i / 2, &table, y + i);
        if (i < first + group)
            look_up_16_nibbles(packed + i / 2, &table, y + i);
    }
}

/* Decodes 8 codes, not NaN. At the position of FP32's exponent a code is 2^120 too small, also if subnormal. */
ALWAYS_INLINE uint16x8_t decode8(uint8x8_t codes, float scale)
{
    const uint16x8_t code = vmovl_u8(codes);
    const floats8 moved = widened(vorrq_u16(vshlq_n_u16(vandq_u16(code, vdupq_n_u16(0x80)), 8),
                                            vshlq_n_u16(vandq_u16(code, vdupq_n_u16(0x7F)), 4)));
    return bf16_of((floats8){{vmulq_n_f32(vmulq_n_f32(moved.part[0], 0x1p120f), scale),
                              vmulq_n_f32(vmulq_n_f32(moved.part[1], 0x1p120f), scale)}});
}

bool tsr_decode_mxfp8_bf16_neon(const uint8_t *codes, size_t n, const uint8_t *scales, uint16_t *y)
{
    bool nan = false;
    for (size_t i = 0; i < n; i += MXFP8_GROUP, scales++) {
        const uint8x16_t first = vld1q_u8(codes + i), second = vld1q_u8(codes + i + 16), sign = vdupq_n_u8(0x80);
        if (__builtin_expect(vmaxvq_u8(vmaxq_u8(vbicq_u8(first, sign), vbicq_u8(second, sign))) == 0x7F, 0)) {
            nan |= tsr_decode_mxfp8_bf16_ref(codes + i, MXFP8_GROUP, scales, y + i);
            continue;
        }
        const float scale = tsr_f32_from_e8m0(*scales);
        vst1q_u16(y + i, decode8(vget_low_u8(first), scale));
        vst1q_u16(y + i + 8, decode8(vget_high_u8(first), scale));
        vst1q_u16(y + i + 16, decode8(vget_low_u8(second), scale));
        vst1q_u16(y + i + 24, decode8(vget_high_u8(second), scale));
    }
    return nan;
}
