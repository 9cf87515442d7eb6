/* Computes e4m3 codes of BF16 by byte look-up.
 *
 * For one scale, the rounded quotient of a BF16 number depends only on its 7 mantissa bits, except for the exponent,
 * which shifts it: code = T[mantissa] + 8 * exponent, in bytes, modulo 256. T is computed for each block with the
 * arithmetic of the reference (an FP32 quotient, then rounding), so the bits are the same. This holds while source and
 * quotient are normal numbers and nothing is clamped; a vector with any other value is encoded by division. */
#include "common/float_bits.h"
#include "kernels/cpu/block_fp8.h"

#include "kernels/cpu/variants.h"
#include "kernels/cpu/x86/e4m3_avx512.h"
#include "kernels/cpu/x86/simd_avx512.h"

#include <math.h>
#include <stdbool.h>

typedef struct table {
    __m512i t0, t1;         /* T[0..63], T[64..127] */
    __m512i lowest, extent; /* the table is valid for |x| whose bits are lowest .. lowest + extent; both in every
                             * word */
    float scale;
} table;

static table make_table(float scale)
{
    /* scale = f * 2^e: the quotient (1 + m/128) / f lies in (1, 4), and is exact except for its exponent. */
    int e;
    const __m512 f = _mm512_set1_ps(frexpf(scale, &e));
    const __m512i offset = _mm512_set1_epi32(8 * (127 + e) + (120 << 3));
    _Alignas(64) uint8_t bytes[128];
    for (int m = 0; m < 128; m += 16) {
        const __m512i lane = _mm512_add_epi32(_mm512_set1_epi32(m),
                                              _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
        const __m512 x = _mm512_castsi512_ps(
            _mm512_or_si512(_mm512_slli_epi32(lane, 16), _mm512_castps_si512(_mm512_set1_ps(1.0f))));
        const __m512i q = _mm512_castps_si512(_mm512_div_ps(x, f));
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(q, 20), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(0x7FFFF)), odd);
        const __m512i code = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), offset);
        _mm_store_si128((void *)(bytes + m), _mm512_cvtepi32_epi8(code));
    }
    /* Bounds with a margin: quotients from 2^-6 up, and below 464, where rounding would exceed 448. */
    const float low = scale * 0x1.04p-6f, high = scale * 456.0f;
    const uint32_t low_bits = (tsr_f32_bits(low) + 0xFFFF) >> 16, high_bits = tsr_f32_bits(high) >> 16;
    const uint32_t lowest = low_bits < 0x80 ? 0x80 : low_bits; /* a subnormal x has no mantissa to look up */
    const uint32_t highest = high_bits > 0x7F7F ? 0x7F7F : high_bits;
    const bool usable = lowest <= highest;
    return (table){
        .t0 = _mm512_load_si512(bytes),
        .t1 = _mm512_load_si512(bytes + 64),
        .lowest = _mm512_set1_epi16((short)(usable ? lowest : 0x7FFF)),
        .extent = _mm512_set1_epi16((short)(usable ? highest - lowest : 0)),
        .scale = scale,
    };
}

/* Looks up 64 codes: low bytes hold the mantissa and the exponent's last bit, high bytes the sign and the rest. */
ALWAYS_INLINE __m512i look_up(const table *t, __m512i a, __m512i b, __m512i evens, __m512i odds)
{
    const __m512i low = _mm512_permutex2var_epi8(a, evens, b);
    const __m512i high = _mm512_permutex2var_epi8(a, odds, b);
    const __m512i rounded = _mm512_permutex2var_epi8(t->t0, low, t->t1); /* uses only the low 7 bits of the index */
    const __m512i exponent16 = _mm512_and_si512(_mm512_slli_epi16(high, 4), _mm512_set1_epi8((char)0xF0));
    const __m512i exponent8 = _mm512_and_si512(_mm512_srli_epi16(low, 4), _mm512_set1_epi8(8));
    const __m512i code = _mm512_add_epi8(rounded, _mm512_or_si512(exponent16, exponent8));
    return _mm512_ternarylogic_epi32(code, high, _mm512_set1_epi8((char)0x80), 0xF8); /* code | (high & 0x80) */
}

typedef struct byte_order {
    __m512i evens, odds;
} byte_order;

static byte_order make_byte_order(void)
{
    _Alignas(64) uint8_t even[64], odd[64];
    for (int i = 0; i < 64; i++) {
        even[i] = (uint8_t)(2 * i);
        odd[i] = (uint8_t)(2 * i + 1);
    }
    return (byte_order){_mm512_load_si512(even), _mm512_load_si512(odd)};
}

static __attribute__((noinline)) void encode_by_division(const uint16_t *x, size_t n, float scale, uint8_t *codes)
{
    const __m512 divisor = _mm512_set1_ps(scale);
    for (size_t i = 0; i < n; i += 32)
        _mm256_storeu_si256((void *)(codes + i), encode32(load32_bf16(x + i, ~0u), divisor));
}

/* Encodes columns in whole STEPs: see e4m3_bands_body.h. */
ALWAYS_INLINE bool encode_steps(const uint16_t *x, size_t n, const table *t, uint8_t *codes)
{
    const byte_order order = make_byte_order();
    const vec magnitude = v_words(0x7FFF);
    vec farthest = v_zero();
    for (size_t i = 0; i < n; i += STEP) {
        const vec a = v_load(x + i), b = v_load(x + i + STEP / 2);
        farthest = v_max16(farthest, _mm512_sub_epi16(v_and(a, magnitude), t->lowest));
        farthest = v_max16(farthest, _mm512_sub_epi16(v_and(b, magnitude), t->lowest));
        v_store(codes + i, look_up(t, a, b, order.evens, order.odds));
    }
    if (__builtin_expect(_mm512_cmpgt_epu16_mask(farthest, t->extent) == 0, 1))
        return true;
    encode_by_division(x, n, t->scale, codes);
    return false;
}

#define TSR_BLOCK_FP8(name) tsr_##name##_vbmi
#include "kernels/cpu/e4m3_bands_body.h"
