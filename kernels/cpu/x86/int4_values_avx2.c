/* Decodes int4 codes with AVX2. The 16 values of a group are a table; for 16 bits, one table of their low bytes and one
 * of their high bytes. */
#include <immintrin.h>
#include <stdbool.h>

#define TSR_INT4(name) tsr_##name##_avx2
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/int4_values_body.h"
#include "kernels/cpu/x86/nibble_tables_avx2.h"

/* The 16 values of a group. */
typedef struct values {
    __m256 low, high;
} values;

ALWAYS_INLINE values values_of(float scale, float zero)
{
    const __m256 s = _mm256_set1_ps(scale), z = _mm256_set1_ps(zero);
    const __m256 low = _mm256_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1), high = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
    return (values){_mm256_mul_ps(_mm256_sub_ps(low, z), s), _mm256_mul_ps(_mm256_sub_ps(high, z), s)};
}

/* ---- 16 bits ---- */

/* Rounds to nearest even; the result is in the lower half of each lane. */
ALWAYS_INLINE __m256i to_bf16(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
}

ALWAYS_INLINE __m256i to_f16(__m256 x)
{
    return _mm256_cvtepu16_epi32(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

ALWAYS_INLINE byte_tables tables_of(float scale, float zero, bool f16)
{
    const values v = values_of(scale, zero);
    const __m256i words =
        f16 ? _mm256_packus_epi32(to_f16(v.low), to_f16(v.high)) : _mm256_packus_epi32(to_bf16(v.low), to_bf16(v.high));
    const __m256i bytes =
        _mm256_packus_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0xFF)), _mm256_srli_epi16(words, 8));
    return (byte_tables){_mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5)),
                         _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(2, 6, 3, 7, 2, 6, 3, 7))};
}

ALWAYS_INLINE void decode(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                          bool f16, uint16_t *y)
{
    for (size_t first = 0, g = 0; first < n; first += group, g++) {
        const size_t end = n - first < group ? n : first + group;
        const float z = zero == NULL ? 0 : zero[g];
        const byte_tables t = tables_of(scale[g], z, f16);
        size_t i = first;
        for (; i + 32 <= end; i += 32)
            look_up(packed + i / 2, t, y + i);
        if (i == end)
            continue;
        if (f16)
            tsr_decode_int4_f16_ref(packed + i / 2, end - i, end - i, &scale[g], &z, y + i);
        else
            tsr_decode_int4_bf16_ref(packed + i / 2, end - i, end - i, &scale[g], &z, y + i);
    }
}

#include "kernels/cpu/x86/int4_groups_body.h"

/* ---- 32 bits ---- */

/* Looks up 8 values of 4 bytes. */
ALWAYS_INLINE __m256 look_up_f32(const uint8_t *packed, values v)
{
    int four;
    __builtin_memcpy(&four, packed, sizeof four);
    const __m256i byte = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
    const __m256i codes = _mm256_or_si256(byte, _mm256_slli_epi64(byte, 28)); /* low 4 bits of each lane */
    const __m256 which = _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(v.low, codes), _mm256_permutevar8x32_ps(v.high, codes), which);
}

void tsr_decode_int4_f32_avx2(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                              float *y)
{
    for (size_t first = 0, g = 0; first < n; first += group, g++) {
        const size_t end = n - first < group ? n : first + group;
        const float z = zero == NULL ? 0 : zero[g];
        const values v = values_of(scale[g], z);
        size_t i = first;
        for (; i + 8 <= end; i += 8)
            _mm256_storeu_ps(y + i, look_up_f32(packed + i / 2, v));
        tsr_decode_int4_f32_ref(packed + i / 2, end - i, group, &scale[g], &z, y + i);
    }
}

void tsr_narrow_f16_avx2(const float *x, size_t n, uint16_t *y)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    tsr_narrow_f16_ref(x + i, n - i, y + i);
}
