/* Defines the operations of e4m3_bands_body.h, which explains them, in AVX2. */
#ifndef TSR_KERNELS_CPU_X86_E4M3_SIMD_AVX2_H
#define TSR_KERNELS_CPU_X86_E4M3_SIMD_AVX2_H

#include "kernels/cpu/always_inline.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef __m256i vec;
enum { STEP = 32 };

ALWAYS_INLINE vec v_load(const void *p)
{
    return _mm256_loadu_si256(p);
}

ALWAYS_INLINE void v_store(void *p, vec x)
{
    _mm256_storeu_si256(p, x);
}

ALWAYS_INLINE vec v_lanes(const uint8_t *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)p));
}

#define v_zero()                  _mm256_setzero_si256()
#define v_words(w)                _mm256_set1_epi16((short)(w))
#define v_bytes(b)                _mm256_set1_epi8((char)(b))
#define v_and(a, b)               _mm256_and_si256(a, b)
#define v_or(a, b)                _mm256_or_si256(a, b)
#define v_add8(a, b)              _mm256_add_epi8(a, b)
#define v_sub8(a, b)              _mm256_sub_epi8(a, b)
#define v_adds8(a, b)             _mm256_adds_epu8(a, b)
#define v_max8(a, b)              _mm256_max_epu8(a, b)
#define v_max16(a, b)             _mm256_max_epu16(a, b)
#define v_subs16(a, b)            _mm256_subs_epu16(a, b)
#define v_left16(x, n)            _mm256_slli_epi16(x, n)
#define v_right16(x, n)           _mm256_srli_epi16(x, n)
#define v_shuffle(table, i)       _mm256_shuffle_epi8(table, i)
#define v_pack(a, b)              _mm256_packus_epi16(a, b)
#define v_pack_signed(a, b)       _mm256_packs_epi16(a, b)
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

typedef __m256 vf;
enum { PARTS = 2 };

#define f_set1(x)                     _mm256_set1_ps(x)
#define f_mul(a, b)                   _mm256_mul_ps(a, b)
#define f_fmadd(a, b, c)              _mm256_fmadd_ps(a, b, c)
#define f_fnmadd(a, b, c)             _mm256_fnmadd_ps(a, b, c)
#define f_size(x)                     _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x)
#define f_larger(x, y)                _mm256_max_ps(f_size(y), x)
#define f_some_above(a, b)            (_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0)
#define f_some_equal(a, b)            (_mm256_movemask_ps(_mm256_cmp_ps(f_size(a), b, _CMP_EQ_OQ)) != 0)
#define v_zip_lo(a, b)                _mm256_unpacklo_epi8(a, b)
#define v_zip_hi(a, b)                _mm256_unpackhi_epi8(a, b)
#define v_where_below(x, limit, a, b) _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi8(v_bytes(limit), x))
#define f_lo_of_words(w)              _mm256_castsi256_ps(_mm256_unpacklo_epi16(v_zero(), w))
#define f_hi_of_words(w)              _mm256_castsi256_ps(_mm256_unpackhi_epi16(v_zero(), w))
#define f_lo_of_floats(a, b)          _mm256_permute2f128_ps(a, b, 0x20)
#define f_hi_of_floats(a, b)          _mm256_permute2f128_ps(a, b, 0x31)

ALWAYS_INLINE vf f_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

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

#define v_add16(a, b)          _mm256_add_epi16(a, b)
#define v_max16s(a, b)         _mm256_max_epi16(a, b)
#define w_equal(a, b)          ((uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi16(a, b)))
#define w_nonzero(x)           (~w_equal(_mm256_add_epi16(x, x), v_zero()))
#define f_of_zipped_lo(lo, hi) _mm256_castsi256_ps(_mm256_unpacklo_epi16(lo, hi))
#define f_of_zipped_hi(lo, hi) _mm256_castsi256_ps(_mm256_unpackhi_epi16(lo, hi))
#define f_add(a, b)            _mm256_add_ps(a, b)
#define f_sub(a, b)            _mm256_sub_ps(a, b)
#define f_max(a, b)            _mm256_max_ps(a, b)
#define f_min(a, b)            _mm256_min_ps(a, b)

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

#endif
