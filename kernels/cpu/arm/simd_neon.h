/* Defines the operations of e4m3_bands_body.h and e4m3_error_body.h with NEON.
 *
 * A register is two registers of NEON, which are its 16-byte lanes. "Packed order" is the order of columns. */
#pragma once

#include "kernels/cpu/always_inline.h"

#include <arm_neon.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vec {
    uint8x16_t a, b;
} vec;
enum { STEP = 32 };

#define WORDS(x)        vreinterpretq_u16_u8(x)
#define BYTES(x)        vreinterpretq_u8_u16(x)
#define SIGNED_WORDS(x) vreinterpretq_s16_u8(x)

/* Defines an operation on two registers from the operation on one. */
#define WORD_OF_TWO(name, with_x_and_y)                              \
    ALWAYS_INLINE uint8x16_t name##_half(uint8x16_t x, uint8x16_t y) \
    {                                                                \
        return with_x_and_y;                                         \
    }                                                                \
    ALWAYS_INLINE vec name(vec x, vec y)                             \
    {                                                                \
        return (vec){name##_half(x.a, y.a), name##_half(x.b, y.b)};  \
    }

WORD_OF_TWO(v_and, vandq_u8(x, y))
WORD_OF_TWO(v_or, vorrq_u8(x, y))
WORD_OF_TWO(v_add8, vaddq_u8(x, y))
WORD_OF_TWO(v_sub8, vsubq_u8(x, y))
WORD_OF_TWO(v_adds8, vqaddq_u8(x, y))
WORD_OF_TWO(v_max8, vmaxq_u8(x, y))
WORD_OF_TWO(v_max16, BYTES(vmaxq_u16(WORDS(x), WORDS(y))))
WORD_OF_TWO(v_subs16, BYTES(vqsubq_u16(WORDS(x), WORDS(y))))
WORD_OF_TWO(v_shuffle, vqtbl1q_u8(x, y))
WORD_OF_TWO(v_with_signs, vorrq_u8(x, vandq_u8(y, vdupq_n_u8(0x80))))

ALWAYS_INLINE vec v_load(const void *p)
{
    return (vec){vld1q_u8(p), vld1q_u8((const uint8_t *)p + 16)};
}

ALWAYS_INLINE void v_store(void *p, vec x)
{
    vst1q_u8(p, x.a);
    vst1q_u8((uint8_t *)p + 16, x.b);
}

ALWAYS_INLINE vec v_both(uint8x16_t x)
{
    return (vec){x, x};
}

#define v_lanes(p)           v_both(vld1q_u8(p))
#define v_words(w)           v_both(BYTES(vdupq_n_u16((uint16_t)(w))))
#define v_bytes(b)           v_both(vdupq_n_u8((uint8_t)(b)))
#define v_zero()             v_bytes(0)
#define v_left16(x, n)       ((vec){BYTES(vshlq_n_u16(WORDS((x).a), n)), BYTES(vshlq_n_u16(WORDS((x).b), n))})
#define v_right16(x, n)      ((vec){BYTES(vshrq_n_u16(WORDS((x).a), n)), BYTES(vshrq_n_u16(WORDS((x).b), n))})
#define v_in_order(x)        (x)
#define v_in_packed_order(x) (x)

ALWAYS_INLINE uint8x16_t packed(vec x)
{
    return vqmovun_high_s16(vqmovun_s16(SIGNED_WORDS(x.a)), SIGNED_WORDS(x.b));
}

ALWAYS_INLINE vec v_pack(vec x, vec y)
{
    return (vec){packed(x), packed(y)};
}

ALWAYS_INLINE uint8x16_t packed_signed(vec x)
{
    return vreinterpretq_u8_s8(vqmovn_high_s16(vqmovn_s16(SIGNED_WORDS(x.a)), SIGNED_WORDS(x.b)));
}

ALWAYS_INLINE vec v_pack_signed(vec x, vec y)
{
    return (vec){packed_signed(x), packed_signed(y)};
}

ALWAYS_INLINE uint8x16_t above(uint8x16_t x, uint8x16_t y)
{
    return vcgtq_s8(vreinterpretq_s8_u8(x), vreinterpretq_s8_u8(y));
}

ALWAYS_INLINE vec v_one_more_above(vec x, vec a, vec b)
{
    return (vec){vsubq_u8(x.a, above(a.a, b.a)), vsubq_u8(x.b, above(a.b, b.b))};
}

ALWAYS_INLINE bool v_some_above8(vec x, int limit)
{
    return vmaxvq_u8(vmaxq_u8(x.a, x.b)) > limit;
}

ALWAYS_INLINE uint32_t v_largest16(vec x)
{
    return vmaxvq_u16(vmaxq_u16(WORDS(x.a), WORDS(x.b)));
}

/* ---- for e4m3_error_body.h ---- */

typedef struct vf {
    float32x4_t a, b;
} vf;
enum { PARTS = 2 };

ALWAYS_INLINE vf f_set1(float x)
{
    return (vf){vdupq_n_f32(x), vdupq_n_f32(x)};
}

ALWAYS_INLINE vf f_load(const float *p)
{
    return (vf){vld1q_f32(p), vld1q_f32(p + 4)};
}

ALWAYS_INLINE vf f_mul(vf x, vf y)
{
    return (vf){vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)};
}

ALWAYS_INLINE vf f_fmadd(vf x, vf y, vf z)
{
    return (vf){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)};
}

ALWAYS_INLINE vf f_fnmadd(vf x, vf y, vf z)
{
    return (vf){vfmsq_f32(z.a, x.a, y.a), vfmsq_f32(z.b, x.b, y.b)};
}

ALWAYS_INLINE vf f_larger(vf x, vf y)
{
    return (vf){vmaxnmq_f32(x.a, vabsq_f32(y.a)), vmaxnmq_f32(x.b, vabsq_f32(y.b))};
}

ALWAYS_INLINE float f_largest(vf x)
{
    return vmaxvq_f32(vmaxq_f32(x.a, x.b));
}

/* Returns one bit per lane: 1 if the mask is set. */
ALWAYS_INLINE unsigned bits_of(uint32x4_t a, uint32x4_t b)
{
    static const uint32_t kBits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    return vaddvq_u32(vorrq_u32(vandq_u32(a, vld1q_u32(kBits)), vandq_u32(b, vld1q_u32(kBits + 4))));
}

ALWAYS_INLINE bool f_some_above(vf x, vf y)
{
    return vmaxvq_u32(vorrq_u32(vcgtq_f32(x.a, y.a), vcgtq_f32(x.b, y.b))) != 0;
}

ALWAYS_INLINE bool f_some_equal(vf x, vf y)
{
    return vmaxvq_u32(vorrq_u32(vceqq_f32(vabsq_f32(x.a), y.a), vceqq_f32(vabsq_f32(x.b), y.b))) != 0;
}

ALWAYS_INLINE uint32_t f_nonzero(vf lo, vf hi)
{
    const unsigned zeros = bits_of(vceqzq_f32(lo.a), vceqzq_f32(lo.b)) | bits_of(vceqzq_f32(hi.a), vceqzq_f32(hi.b))
                                                                             << 8;
    return ~zeros & 0xFFFF;
}

ALWAYS_INLINE vec v_zip_lo(vec x, vec y)
{
    return (vec){vzip1q_u8(x.a, y.a), vzip2q_u8(x.a, y.a)};
}

ALWAYS_INLINE vec v_zip_hi(vec x, vec y)
{
    return (vec){vzip1q_u8(x.b, y.b), vzip2q_u8(x.b, y.b)};
}

ALWAYS_INLINE vec v_where_below(vec x, uint8_t limit, vec yes, vec no)
{
    const uint8x16_t l = vdupq_n_u8(limit);
    return (vec){vbslq_u8(vcltq_u8(x.a, l), yes.a, no.a), vbslq_u8(vcltq_u8(x.b, l), yes.b, no.b)};
}

ALWAYS_INLINE vf f_lo_of_words(vec w)
{
    return (vf){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(WORDS(w.a)), 16)),
                vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(WORDS(w.b)), 16))};
}

ALWAYS_INLINE vf f_hi_of_words(vec w)
{
    return (vf){vreinterpretq_f32_u32(vshll_high_n_u16(WORDS(w.a), 16)),
                vreinterpretq_f32_u32(vshll_high_n_u16(WORDS(w.b), 16))};
}

ALWAYS_INLINE vf f_lo_of_floats(vf x, vf y)
{
    return (vf){x.a, y.a};
}

ALWAYS_INLINE vf f_hi_of_floats(vf x, vf y)
{
    return (vf){x.b, y.b};
}
