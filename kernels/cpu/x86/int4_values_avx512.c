/* Decodes int4 codes with AVX-512. The 16 values of a group are a table. */
#include <immintrin.h>
#include <stdbool.h>

#define TSR_INT4(name) tsr_##name##_avx512
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/int4_values_body.h"

/* Computes the 16 values of a group. */
ALWAYS_INLINE __m512 values_of(float scale, float zero)
{
    const __m512 codes = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_mul_ps(_mm512_sub_ps(codes, _mm512_set1_ps(zero)), _mm512_set1_ps(scale));
}

/* ---- 16 bits ---- */

ALWAYS_INLINE __m256i to_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
}

/* Returns the 16 values as words, twice. */
ALWAYS_INLINE __m512i table_of(float scale, float zero, bool f16)
{
    const __m512 v = values_of(scale, zero);
    return _mm512_broadcast_i64x4(f16 ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : to_bf16(v));
}

/* Looks up 32 values of 16 bytes. */
ALWAYS_INLINE __m512i look_up(__m128i packed, __m512i table)
{
    const __m512i byte = _mm512_cvtepu8_epi32(packed);
    return _mm512_permutexvar_epi16(_mm512_or_si512(byte, _mm512_slli_epi32(byte, 12)), table);
}

ALWAYS_INLINE void decode(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                          bool f16, uint16_t *y)
{
    for (size_t first = 0, g = 0; first < n; first += group, g++) {
        const size_t end = group == 32 && n % 32 == 0 ? first + 32 : n - first < group ? n : first + group;
        const __m512i table = table_of(scale[g], zero == NULL ? 0 : zero[g], f16);
        size_t i = first;
        for (; i + 32 <= end; i += 32)
            _mm512_storeu_si512(y + i, look_up(_mm_loadu_si128((const __m128i *)(packed + i / 2)), table));
        if (i == end)
            continue;
        const __mmask16 bytes = (__mmask16)((1u << (end - i + 1) / 2) - 1);
        _mm512_mask_storeu_epi16(y + i, (1u << (end - i)) - 1,
                                 look_up(_mm_maskz_loadu_epi8(bytes, packed + i / 2), table));
    }
}

#include "kernels/cpu/x86/int4_groups_body.h"

/* ---- 32 bits ---- */

/* Looks up 16 values of 8 bytes. */
ALWAYS_INLINE __m512 look_up_f32(__m128i packed, __m512 table)
{
    const __m512i byte = _mm512_cvtepu8_epi64(packed);
    return _mm512_permutexvar_ps(_mm512_or_si512(byte, _mm512_slli_epi64(byte, 28)), table);
}

void tsr_decode_int4_f32_avx512(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                                float *y)
{
    for (size_t first = 0, g = 0; first < n; first += group, g++) {
        const size_t end = n - first < group ? n : first + group;
        const __m512 table = values_of(scale[g], zero == NULL ? 0 : zero[g]);
        size_t i = first;
        for (; i + 16 <= end; i += 16)
            _mm512_storeu_ps(y + i, look_up_f32(_mm_loadl_epi64((const __m128i *)(packed + i / 2)), table));
        if (i == end)
            continue;
        const __mmask16 bytes = (__mmask16)((1u << (end - i + 1) / 2) - 1);
        _mm512_mask_storeu_ps(y + i, (__mmask16)((1u << (end - i)) - 1),
                              look_up_f32(_mm_maskz_loadu_epi8(bytes, packed + i / 2), table));
    }
}

void tsr_narrow_f16_avx512(const float *x, size_t n, uint16_t *y)
{
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 live = (__mmask16)(n - i >= 16 ? 0xFFFF : (1u << (n - i)) - 1);
        const __m512 some = _mm512_maskz_loadu_ps(live, x + i);
        _mm256_mask_storeu_epi16(y + i, live, _mm512_cvtps_ph(some, _MM_FROUND_TO_NEAREST_INT));
    }
}
