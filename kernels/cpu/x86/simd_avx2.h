/* Defines the operations of e4m3_bands_body.h, which explains them, in AVX2. */
#pragma once

#include "kernels/cpu/always_inline.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef __m256i vec;
typedef __m256 vf;
enum { STEP = 32, PARTS = 2 };

#define OP(name)   _mm256_##name
#define BITS(name) _mm256_##name##_si256
#define FLOATS(x)  _mm256_castsi256_ps(x)
#include "kernels/cpu/x86/simd_ops.h"

#define v_and(a, b)               _mm256_and_si256(a, b)
#define v_or(a, b)                _mm256_or_si256(a, b)
#define v_xor(a, b)               _mm256_xor_si256(a, b)
#define v_lanes(p)                _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(p)))
#define v_in_order(x)             _mm256_permute4x64_epi64(x, _MM_SHUFFLE(3, 1, 2, 0))
#define v_in_packed_order(x)      _mm256_permute4x64_epi64(x, _MM_SHUFFLE(3, 1, 2, 0))
#define v_one_more_above(x, a, b) _mm256_sub_epi8(x, _mm256_cmpgt_epi8(a, b))
#define v_with_signs(x, signs)    _mm256_or_si256(x, _mm256_and_si256(signs, _mm256_set1_epi8((char)0x80)))

ALWAYS_INLINE bool v_some_above8(vec x, int limit)
{
    const vec excess = _mm256_subs_epu8(x, v_bytes(limit));
    return !_mm256_testz_si256(excess, excess);
}

/* The complement of the smallest complement, for which there is an instruction. */
ALWAYS_INLINE uint32_t v_largest16(vec x)
{
    const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
    return ~(uint32_t)_mm_cvtsi128_si32(least) & 0xFFFF;
}

/* ---- for e4m3_error_body.h ---- */

#define f_size(x)                     _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x)
#define f_larger(x, y)                _mm256_max_ps(f_size(y), x)
#define f_some_above(a, b)            (_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0)
#define f_some_equal(a, b)            (_mm256_movemask_ps(_mm256_cmp_ps(f_size(a), b, _CMP_EQ_OQ)) != 0)
#define v_where_below(x, limit, a, b) _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi8(v_bytes(limit), x))
#define f_lo_of_floats(a, b)          _mm256_permute2f128_ps(a, b, 0x20)
#define f_hi_of_floats(a, b)          _mm256_permute2f128_ps(a, b, 0x31)

ALWAYS_INLINE uint32_t f_nonzero(vf lo, vf hi)
{
    const vf zero = _mm256_setzero_ps();
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(lo, zero, _CMP_NEQ_UQ)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(hi, zero, _CMP_NEQ_UQ)) << 8;
}

ALWAYS_INLINE float f_largest(vf x)
{
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* ---- for int_error_body.h ---- */

enum { W_BITS = 2 };

#define w_equal(a, b) ((uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi16(a, b)))
#define w_nonzero(x)  (~w_equal(_mm256_add_epi16(x, x), v_zero()))

ALWAYS_INLINE vec v_load_codes(const int8_t *p)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)p));
}

ALWAYS_INLINE double f_tree(const vf sums[PARTS])
{
    const __m256d low = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(sums[0])),
                                      _mm256_cvtps_pd(_mm256_castps256_ps128(sums[1])));
    const __m256d high = _mm256_add_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(sums[0], 1)),
                                       _mm256_cvtps_pd(_mm256_extractf128_ps(sums[1], 1)));
    const __m256d four = _mm256_add_pd(low, high);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}
