/* Looks up 16-bit values of 4-bit codes with AVX2: a table of 16 values is one of their low and one of their high
 * bytes. */
#pragma once

#include "kernels/cpu/always_inline.h"

#include <immintrin.h>
#include <stdint.h>

/* The table of the first 16 codes in the lower halves, of the others in the upper halves. */
typedef struct byte_tables {
    __m256i low, high;
} byte_tables;

/* 32 values of 16 bytes. */
ALWAYS_INLINE void look_up(const uint8_t *packed, byte_tables t, uint16_t *y)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)packed), fifteen = _mm_set1_epi8(15);
    const __m128i even = _mm_and_si128(bytes, fifteen), odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), fifteen);
    const __m256i codes = _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
    const __m256i low = _mm256_shuffle_epi8(t.low, codes), high = _mm256_shuffle_epi8(t.high, codes);
    const __m256i first = _mm256_unpacklo_epi8(low, high), second = _mm256_unpackhi_epi8(low, high);
    _mm256_storeu_si256((__m256i *)y, _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256((__m256i *)(y + 16), _mm256_permute2x128_si256(first, second, 0x31));
}
