/* The int kernels, compiled for avx2; amax of whole registers by hand. */
#define TSR_INT(name)  tsr_##name##_avx2
#define TSR_FINDS_AMAX 1
#include "kernels/cpu/int_quant_body.h"

#include <immintrin.h>

/* The largest of 16 words: the least of their complements, which there is an instruction for. */
static inline uint32_t largest_word(__m256i x)
{
    const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
    return ~(uint32_t)_mm_cvtsi128_si32(least) & 0xFFFF;
}

static inline __attribute__((always_inline)) uint32_t amax_of(const uint16_t *x, size_t n)
{
    const __m256i magnitude = _mm256_set1_epi16(INT16_MAX);
    __m256i largest = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        largest = _mm256_max_epu16(largest, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i)), magnitude));
    uint32_t all = largest_word(largest);
    for (; i < n; i++)
        all = (x[i] & 0x7FFFu) > all ? x[i] & 0x7FFFu : all;
    return all << 16;
}

void tsr_amax_groups_bf16_avx2(const uint16_t *x, size_t cols, size_t group, uint32_t *amax)
{
    size_t first = 0;
    if (group == 16) /* of known size: no loop inside */
        for (; first + 16 <= cols; first += 16)
            *amax++ = amax_of(x + first, 16);
    if (group == 32)
        for (; first + 32 <= cols; first += 32)
            *amax++ = amax_of(x + first, 32);
    for (; first < cols; first += group)
        *amax++ = amax_of(x + first, cols - first < group ? cols - first : group);
}
