/* The words of kernels/cpu/x86/e4m3_bands.h in NEON; they are explained there. */
#ifndef TSR_KERNELS_CPU_ARM_E4M3_WORDS_NEON_H
#define TSR_KERNELS_CPU_ARM_E4M3_WORDS_NEON_H

#include "kernels/cpu/x86/always_inline.h"

#include <arm_neon.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8x16_t vec;
enum { STEP = 16 };

ALWAYS_INLINE vec v_load(const void *p)
{
    return vld1q_u8(p);
}

ALWAYS_INLINE void v_store(void *p, vec x)
{
    vst1q_u8(p, x);
}

ALWAYS_INLINE vec v_lanes(const uint8_t *p)
{
    return vld1q_u8(p);
}

#define WORDS(x)                  vreinterpretq_u16_u8(x)
#define BYTES(x)                  vreinterpretq_u8_u16(x)
#define SIGNED_WORDS(x)           vreinterpretq_s16_u8(x)
#define v_zero()                  vdupq_n_u8(0)
#define v_words(w)                BYTES(vdupq_n_u16((uint16_t)(w)))
#define v_bytes(b)                vdupq_n_u8((uint8_t)(b))
#define v_and(a, b)               vandq_u8(a, b)
#define v_or(a, b)                vorrq_u8(a, b)
#define v_add8(a, b)              vaddq_u8(a, b)
#define v_sub8(a, b)              vsubq_u8(a, b)
#define v_adds8(a, b)             vqaddq_u8(a, b)
#define v_max8(a, b)              vmaxq_u8(a, b)
#define v_max16(a, b)             BYTES(vmaxq_u16(WORDS(a), WORDS(b)))
#define v_subs16(a, b)            BYTES(vqsubq_u16(WORDS(a), WORDS(b)))
#define v_left16(x, n)            BYTES(vshlq_n_u16(WORDS(x), n))
#define v_right16(x, n)           BYTES(vshrq_n_u16(WORDS(x), n))
#define v_shuffle(table, i)       vqtbl1q_u8(table, i)
#define v_pack(a, b)              vqmovun_high_s16(vqmovun_s16(SIGNED_WORDS(a)), SIGNED_WORDS(b))
#define v_pack_signed(a, b)       vreinterpretq_u8_s8(vqmovn_high_s16(vqmovn_s16(SIGNED_WORDS(a)), SIGNED_WORDS(b)))
#define v_in_order(x)             (x)
#define v_in_packed_order(x)      (x)
#define v_one_more_above(x, a, b) vsubq_u8(x, vcgtq_s8(vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b)))
#define v_with_signs(x, signs)    vorrq_u8(x, vandq_u8(signs, vdupq_n_u8(0x80)))
#define v_some_above8(x, limit)   (vmaxvq_u8(x) > (limit))
#define v_largest16(x)            ((uint32_t)vmaxvq_u16(WORDS(x)))

#endif
