/* Converts 32 columns to floats and divides them into codes. Used only by the AVX-512 files.
 *
 * Unpacking words to dwords works inside each 128-bit quarter of a register, and so does packing. 32 columns are kept
 * as lo = columns 0-3, 8-11, 16-19, 24-27 and hi = columns 4-7, 12-15, 20-23, 28-31; packing restores their order. */
#pragma once

#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/prefetch.h"

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

typedef struct f32x32 {
    __m512 lo, hi;
} f32x32;

/* Loads 32 columns from x. Those outside `lanes` are not read, and become zeros. */
typedef f32x32 load32_fn(const void *x, __mmask32 lanes);

ALWAYS_INLINE __mmask32 first_lanes(size_t n)
{
    return n < 32 ? (1u << n) - 1 : ~0u;
}

ALWAYS_INLINE f32x32 unpack_bf16(__m512i x)
{
    const __m512i zero = _mm512_setzero_si512();
    return (f32x32){_mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, x)),
                    _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, x))};
}

ALWAYS_INLINE f32x32 load32_bf16(const void *x, __mmask32 lanes)
{
    return unpack_bf16(_mm512_maskz_loadu_epi16(lanes, x));
}

ALWAYS_INLINE f32x32 load32_f32(const void *x, __mmask32 lanes)
{
    const __m512 a = _mm512_maskz_loadu_ps((__mmask16)lanes, x);
    const __m512 b = _mm512_maskz_loadu_ps((__mmask16)(lanes >> 16), (const float *)x + 16);
    return (f32x32){_mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(2, 0, 2, 0)),
                    _mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(3, 1, 3, 1))};
}

/* Computes tsr_e4m3_from_f32 on 16 lanes. */
ALWAYS_INLINE __m512i codes_of(__m512 q)
{
    /* min_ps gives its second operand when one is NaN: a NaN survives here and becomes 0x7F below. */
    const __m512 a = _mm512_min_ps(_mm512_set1_ps(448.0f), _mm512_abs_ps(q));
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i top = _mm512_srli_epi32(bits, 20);
    const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFFF)), odd);
    const __m512i normal = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), _mm512_set1_epi32(120 << 3));

    const __m512 step = _mm512_set1_ps(0x1p14f);
    const __m512i steps = _mm512_castps_si512(_mm512_add_ps(a, step));
    const __mmask16 tiny = _mm512_cmp_ps_mask(a, _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ);
    const __m512i code = _mm512_mask_sub_epi32(normal, tiny, steps, _mm512_castps_si512(step));

    const __m512i magnitude = _mm512_min_epu32(code, _mm512_set1_epi32(0x7F));
    const __m512i sign = _mm512_srli_epi32(_mm512_castps_si512(q), 24);
    return _mm512_ternarylogic_epi32(magnitude, sign, _mm512_set1_epi32(0x80), 0xF8); /* magnitude | (sign & 0x80) */
}

ALWAYS_INLINE __m256i encode32(f32x32 x, __m512 scale)
{
    const __m512i lo = codes_of(_mm512_div_ps(x.lo, scale));
    const __m512i hi = codes_of(_mm512_div_ps(x.hi, scale));
    return _mm512_cvtepi16_epi8(_mm512_packus_epi32(lo, hi));
}
