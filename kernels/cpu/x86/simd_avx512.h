/* Defines the operations of e4m3_bands_body.h, which explains them, in AVX-512. */
#pragma once

#include "kernels/cpu/always_inline.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef __m512i vec;
typedef __m512 vf;
enum { STEP = 64, PARTS = 1 };

#define OP(name)   _mm512_##name
#define BITS(name) _mm512_##name##_si512
#define FLOATS(x)  _mm512_castsi512_ps(x)
#include "kernels/cpu/x86/simd_ops.h"

#define v_and(a, b) _mm512_and_si512(a, b)
#define v_or(a, b)  _mm512_or_si512(a, b)
#define v_xor(a, b) _mm512_xor_si512(a, b)
#define v_lanes(p)  _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)(p)))
ALWAYS_INLINE vec v_in_order(vec x)
{
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), x);
}

ALWAYS_INLINE vec v_in_packed_order(vec x)
{
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), x);
}

ALWAYS_INLINE vec v_one_more_above(vec x, vec a, vec b)
{
    return _mm512_mask_sub_epi8(x, _mm512_cmpgt_epi8_mask(a, b), x, v_bytes(-1));
}

ALWAYS_INLINE vec v_with_signs(vec x, vec signs)
{
    return _mm512_ternarylogic_epi32(x, signs, v_bytes(0x80), 0xF8); /* x | (signs & 0x80) */
}

ALWAYS_INLINE bool v_some_above8(vec x, int limit)
{
    return _mm512_cmpgt_epu8_mask(x, v_bytes(limit)) != 0;
}

ALWAYS_INLINE uint32_t v_largest16(vec x)
{
    const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    const __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1))); /* minimum of the complements */
    return ~(uint32_t)_mm_cvtsi128_si32(least) & 0xFFFF;
}

/* ---- for e4m3_error_body.h ---- */

#define f_larger(x, y)                _mm512_range_ps(y, x, 0x0B) /* larger absolute value */
#define f_some_above(a, b)            (_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0)
#define f_some_equal(a, b)            (_mm512_cmp_ps_mask(_mm512_abs_ps(a), b, _CMP_EQ_OQ) != 0)
#define f_largest(x)                  _mm512_reduce_max_ps(x)
#define v_where_below(x, limit, a, b) _mm512_mask_blend_epi8(_mm512_cmplt_epu8_mask(x, v_bytes(limit)), b, a)
#define f_lo_of_floats(a, b)          _mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(2, 0, 2, 0))
#define f_hi_of_floats(a, b)          _mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(3, 1, 3, 1))

/* Combines the masks to 32 bits before counting: gcc 12 may store a 16-bit mask as a word and count a dword. */
ALWAYS_INLINE uint32_t f_nonzero(vf lo, vf hi)
{
    const vf zero = _mm512_setzero_ps();
    return _mm512_kunpackw(_mm512_cmp_ps_mask(hi, zero, _CMP_NEQ_UQ), _mm512_cmp_ps_mask(lo, zero, _CMP_NEQ_UQ));
}

/* ---- for int_error_body.h ---- */

enum { W_BITS = 1 };

#define w_equal(a, b) _mm512_cmpeq_epi16_mask(a, b)
#define w_nonzero(x)  _mm512_test_epi16_mask(x, v_words(0x7FFF))

ALWAYS_INLINE vec v_load_codes(const int8_t *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)p));
}

ALWAYS_INLINE double f_tree(const vf sums[PARTS])
{
    const __m512d eight = _mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(sums[0])),
                                        _mm512_cvtps_pd(_mm512_extractf32x8_ps(sums[0], 1)));
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}
