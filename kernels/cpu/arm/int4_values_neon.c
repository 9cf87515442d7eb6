/* Decodes int4 codes with NEON: the 16 values of a group are rounded once and looked up. */
#define TSR_INT4(name) tsr_##name##_neon
#include "kernels/cpu/int4_values_body.h"

#include "kernels/cpu/arm/floats_neon.h"

/* Computes the products of codes -8 .. 7. */
ALWAYS_INLINE void products(float scale, float zero, floats8 values[2])
{
    static const float kCodes[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    for (int i = 0; i < 4; i++) {
        const float32x4_t code = vsubq_f32(vld1q_f32(kCodes + 4 * i), vdupq_n_f32(zero));
        values[i / 2].part[i % 2] = vmulq_n_f32(code, scale);
    }
}

ALWAYS_INLINE uint16x8_t f16_of(floats8 x)
{
    return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.part[0]), x.part[1]));
}

typedef void decode_fn(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                       uint16_t *y);

/* Decodes whole sets of 32 columns of each group; the scalar definition decodes the rest. */
ALWAYS_INLINE void decode(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                          uint16x8_t narrow(floats8 x), decode_fn *definition, uint16_t *y)
{
    for (size_t first = 0, g = 0; first < n; first += group, g++) {
        const size_t end = n - first < group ? n : first + group;
        floats8 values[2];
        products(scale[g], zero == NULL ? 0 : zero[g], values);
        const word_table t = word_table_of(narrow(values[0]), narrow(values[1]));
        size_t i = first;
        for (; i + 32 <= end; i += 32)
            look_up_nibbles(packed + i / 2, &t, y + i);
        if (i < end)
            definition(packed + i / 2, end - i, end - i, scale + g, zero == NULL ? NULL : zero + g, y + i);
    }
}

void tsr_decode_int4_bf16_neon(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                               uint16_t *y)
{
    decode(packed, n, group, scale, zero, bf16_of, tsr_decode_int4_bf16_ref, y);
}

void tsr_decode_int4_f16_neon(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                              uint16_t *y)
{
    decode(packed, n, group, scale, zero, f16_of, tsr_decode_int4_f16_ref, y);
}

void tsr_narrow_f16_neon(const float *x, size_t n, uint16_t *y)
{
    for (size_t i = 0; i < n; i += 8) {
        const size_t count = n - i < 8 ? n - i : 8;
        const uint16x8_t halves = f16_of(load8_f32(x + i, count));
        memcpy(y + i, &halves, count * sizeof *y);
    }
}
