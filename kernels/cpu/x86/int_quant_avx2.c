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

/* The larger of each two neighbours among 64-bit lanes, word by word: those of a, then those of b, within each half. */
static inline __m256i larger_of_quads(__m256i a, __m256i b)
{
    return _mm256_max_epu16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* The same among 32-bit lanes. */
static inline __m256i larger_of_lanes(__m256i a, __m256i b)
{
    const __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
    return _mm256_max_epu16(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)),
                            _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xDD)));
}

/* The words of a group of 16 or 32, without their signs. */
static inline __attribute__((always_inline)) __m256i magnitudes_of(const uint16_t *x, size_t group)
{
    const __m256i magnitude = _mm256_set1_epi16(INT16_MAX);
    const __m256i first = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)x), magnitude);
    return group == 16
               ? first
               : _mm256_max_epu16(first, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + 16)), magnitude));
}

/* 8 groups in one transposition: a word for each half of a group and for each of its two columns in a lane, and then the
 * larger ones. */
static inline __attribute__((always_inline)) void amax_of_eight(const uint16_t *x, size_t group, uint32_t *amax)
{
    __m256i four[2];
    for (size_t i = 0; i < 2; i++, x += 4 * group)
        four[i] =
            larger_of_lanes(larger_of_quads(magnitudes_of(x, group), magnitudes_of(x + group, group)),
                            larger_of_quads(magnitudes_of(x + 2 * group, group), magnitudes_of(x + 3 * group, group)));
    const __m256i words = _mm256_max_epu16(_mm256_permute2x128_si256(four[0], four[1], 0x20),
                                           _mm256_permute2x128_si256(four[0], four[1], 0x31));
    const __m256i both = _mm256_max_epu16(words, _mm256_slli_epi32(words, 16));
    _mm256_storeu_si256((__m256i *)amax, _mm256_and_si256(both, _mm256_set1_epi32((int)0xFFFF0000u)));
}

/* As many groups as there are eights of; returns their columns. */
static inline __attribute__((always_inline)) size_t amax_of_eights(const uint16_t *x, size_t cols, size_t group,
                                                                   uint32_t *amax)
{
    size_t first = 0;
    for (; first + 8 * group <= cols; first += 8 * group) {
        for (size_t line = 0; line < 2 * group; line += 32) /* a quarter of the next row; its codes fetch the rest */
            _mm_prefetch((const char *)(x + cols + first / 4 + line), _MM_HINT_T0);
        amax_of_eight(x + first, group, amax + first / group);
    }
    return first;
}

void tsr_amax_groups_bf16_avx2(const uint16_t *x, size_t cols, size_t group, uint32_t *amax)
{
    size_t first = 0;
    if (group == 16) /* of known size: no loop inside */
        first = amax_of_eights(x, cols, 16, amax);
    else if (group == 32)
        first = amax_of_eights(x, cols, 32, amax);
    for (; first < cols; first += group)
        amax[first / group] = amax_of(x + first, cols - first < group ? cols - first : group);
}
