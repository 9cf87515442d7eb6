/* Encodes BF16 to e4m3 by a look-up of 16 bytes, for AVX2, AVX-512 and NEON.
 *
 * Their files include it after the operations of e4m3_bands_body.h.
 *
 * For one scale, the rounded quotient of a normal BF16 number depends on its 7 mantissa bits alone, except for the
 * exponent, and it increases with x. `base` is the bits of a power of two whose code is below 8. With `bits`, the
 * bits of x minus `base`, and m, the mantissa bits:
 *
 *   code = bits / 16 + delta[m / 8] + (m > limit[m / 8])
 *
 * One code spans at least 8 mantissas, so among 8 neighbours the code increases at most once. Both tables have 16
 * bytes, and are computed for each block by the reference's division and rounding. Results from LEAST to MOST are
 * correct codes. Others are subnormal, zero or clamped, and are encoded by division. */
#pragma once

#include "common/float_bits.h"
#include "kernels/cpu/always_inline.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { LEAST = 8, MOST = 0x7E }; /* the codes of normal numbers */

typedef struct table {
    uint8_t delta[16], limit[16];
    uint16_t base; /* 0xFFFF: every x is divided */
    float scale;
} table;

/* Returns how many of 8 bytes, which increase by at most one step, are above the first. */
static inline unsigned above_first(const uint8_t *eight)
{
    const uint64_t ones = 0x0101010101010101u;
    uint64_t x;
    memcpy(&x, eight, sizeof x);
    return (unsigned)((x - eight[0] * ones) * ones >> 56);
}

static table make_table(float scale)
{
    /* scale = f * 2^e: the quotient (1 + m/128) / f is in [1, 4) and exact except for its exponent. */
    int e;
    const float f = frexpf(scale, &e);
    uint32_t q[128];
    for (uint32_t m = 0; m < 128; m++) {
        const uint32_t bits = tsr_f32_bits(tsr_f32_from_bits(0x3F800000u | m << 16) / f);
        q[m] = (bits + 0x7FFFF + (bits >> 20 & 1)) >> 20;
    }
    /* q counts in e4m3's steps from exponent 0 on. With x = 2^exponent in `base`, the code is below 8. */
    const int first = (int)q[0] - (120 << 3), exponent = 127 + e - first / 8;
    table t = {.base = 0xFFFF, .scale = scale};
    if (exponent < 1 || exponent > 254)
        return t; /* a subnormal x has no mantissa to look up */
    uint8_t codes[128];
    for (int m = 0; m < 128; m++)
        codes[m] = (uint8_t)((int)q[m] - (int)q[0] + first % 8);
    bool usable = true;
    for (int h = 0; h < 16; h++) {
        usable = usable && codes[8 * h] >= h / 2;
        t.delta[h] = (uint8_t)(codes[8 * h] - h / 2);
        t.limit[h] = (uint8_t)(8 * h + 7 - (int)above_first(codes + 8 * h));
    }
    if (usable)
        t.base = (uint16_t)(exponent << 7);
    return t;
}

/* A table in registers. */
typedef struct lanes_of_table {
    vec delta, limit, base;
} lanes_of_table;

ALWAYS_INLINE lanes_of_table lanes_of(const table *t)
{
    return (lanes_of_table){v_lanes(t->delta), v_lanes(t->limit), v_words(t->base)};
}

/* Returns STEP codes without their signs, in packed order. Codes outside LEAST .. MOST are invalid. */
ALWAYS_INLINE vec look_up(const lanes_of_table *t, vec a, vec b)
{
    const vec magnitude = v_words(0x7FFF), mantissa = v_words(0x7F);
    const vec above_a = v_subs16(v_and(a, magnitude), t->base), above_b = v_subs16(v_and(b, magnitude), t->base);
    const vec steps = v_pack(v_right16(above_a, 4), v_right16(above_b, 4));
    const vec m = v_pack(v_and(above_a, mantissa), v_and(above_b, mantissa));
    const vec h = v_and(v_right16(m, 3), v_bytes(0x0F));
    return v_one_more_above(v_adds8(steps, v_shuffle(t->delta, h)), m, v_shuffle(t->limit, h));
}

/* Encodes n columns, whole STEPs. Returns true if all codes are those of normal numbers and none was clamped. */
ALWAYS_INLINE bool encode_steps(const uint16_t *x, size_t n, const table *t, uint8_t *codes)
{
    const lanes_of_table lanes = lanes_of(t);
    vec farthest = v_zero();
    for (size_t i = 0; i < n; i += STEP) {
        const vec a = v_load(x + i), b = v_load(x + i + STEP / 2), code = look_up(&lanes, a, b);
        farthest = v_max8(farthest, v_sub8(code, v_bytes(LEAST)));
        v_store(codes + i, v_in_order(v_with_signs(code, v_pack_signed(a, b))));
    }
    if (__builtin_expect(!v_some_above8(farthest, MOST - LEAST), 1))
        return true;
    encode_by_division(x, n, t->scale, codes);
    return false;
}
