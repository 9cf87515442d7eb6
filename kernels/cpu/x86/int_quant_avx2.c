/* Integer quantization with AVX2: amax, codes of BF16 and errors use intrinsics, with the method that
 * int_quant_avx512.c explains for codes; the rest is compiled. */
#define TSR_INT(name)  tsr_##name##_avx2
#define TSR_FINDS_AMAX 1
#include "kernels/cpu/error_unit.h"
#include "kernels/cpu/int_quant_body.h"
#include "kernels/cpu/x86/simd_avx2.h"

/* with the words */
#include "kernels/cpu/x86/int_error_body.h"

/* ---- ranges ---- */

/* Returns the largest of 16 words: the complement of the smallest complement, for which there is an instruction. */
static inline uint32_t largest_word(__m256i x)
{
    const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
    return ~(uint32_t)_mm_cvtsi128_si32(least) & 0xFFFF;
}

/* Prefetches from `next` on a quarter as many cache lines as it reads, as in int_quant_avx512.c. */
ALWAYS_INLINE uint32_t amax_of(const uint16_t *x, size_t n, const uint16_t *next)
{
    const __m256i magnitude = _mm256_set1_epi16(INT16_MAX);
    __m256i largest = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        _mm_prefetch((const char *)(next + i / 4), _MM_HINT_T0);
        for (size_t j = i; j < i + 64; j += 16)
            largest =
                _mm256_max_epu16(largest, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + j)), magnitude));
    }
    for (; i + 16 <= n; i += 16)
        largest = _mm256_max_epu16(largest, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i)), magnitude));
    uint32_t all = largest_word(largest);
    for (; i < n; i++)
        all = (x[i] & 0x7FFFu) > all ? x[i] & 0x7FFFu : all;
    return all << 16;
}

/* Returns the larger of each two adjacent 64-bit lanes, word by word: those of a, then those of b, within each half. */
static inline __m256i larger_of_quads(__m256i a, __m256i b)
{
    return _mm256_max_epu16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* The same for 32-bit lanes. */
static inline __m256i larger_of_lanes(__m256i a, __m256i b)
{
    const __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
    return _mm256_max_epu16(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)),
                            _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xDD)));
}

/* Returns the words of a group of 16 or 32, without their signs. */
ALWAYS_INLINE __m256i magnitudes_of(const uint16_t *x, size_t group)
{
    const __m256i magnitude = _mm256_set1_epi16(INT16_MAX);
    const __m256i first = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)x), magnitude);
    return group == 16
               ? first
               : _mm256_max_epu16(first, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + 16)), magnitude));
}

/* Processes 8 groups in one transposition: first a word for each half of a group and for each of its two columns in a
 * lane, then the larger ones. */
ALWAYS_INLINE void amax_of_eight(const uint16_t *x, size_t group, uint32_t *amax)
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

/* Processes groups in sets of eight. Returns the number of columns done. */
ALWAYS_INLINE size_t amax_of_eights(const uint16_t *x, size_t cols, size_t group, uint32_t *amax)
{
    size_t first = 0;
    for (; first + 8 * group <= cols; first += 8 * group) {
        /* a quarter of the next row; encoding prefetches the rest */
        for (size_t line = 0; line < 2 * group; line += 32)
            _mm_prefetch((const char *)(x + cols + first / 4 + line), _MM_HINT_T0);
        amax_of_eight(x + first, group, amax + first / group);
    }
    return first;
}

void tsr_amax_groups_bf16_avx2(const uint16_t *x, size_t cols, size_t group, uint32_t *amax)
{
    size_t first = 0;
    if (group == 16) /* constant size: no inner loop */
        first = amax_of_eights(x, cols, 16, amax);
    else if (group == 32)
        first = amax_of_eights(x, cols, 32, amax);
    for (; first < cols; first += group)
        amax[first / group] = amax_of(x + first, cols - first < group ? cols - first : group, x + cols + first / 4);
}

/* ---- codes ---- */

/* Rounding of a quotient; a constant in each caller. */
typedef enum how { TO_EVEN, AWAY, TO_EVEN_OF_BF16 } how;

typedef struct code_lanes {
    __m256 scale, inverse, zero;
} code_lanes;

/* Rounds to nearest, ties to even or away from zero. */
ALWAYS_INLINE __m256i integers_of(__m256 t, bool away)
{
    if (!away)
        return _mm256_cvtps_epi32(t);
    const __m256 below_half = _mm256_or_ps(_mm256_and_ps(t, _mm256_set1_ps(-0.0f)), _mm256_set1_ps(0x1.FFFFFEp-2f));
    return _mm256_cvttps_epi32(_mm256_add_ps(t, below_half));
}

/* Rounds to the nearest BF16, ties to even. x must not be NaN. */
ALWAYS_INLINE __m256 rounded_to_bf16(__m256 q)
{
    const __m256i bits = _mm256_castps_si256(q);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    return _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32((int)0xFFFF0000u)));
}

/* Rounds quotient + zero point to integers for 8 BF16 values in the upper halves of lanes. */
ALWAYS_INLINE __m256i nearest(__m256i bits, const code_lanes *c, bool zeros, how rounding)
{
    const __m256 x = _mm256_castsi256_ps(bits);
    const __m256 product = _mm256_mul_ps(x, c->inverse), rest = _mm256_fnmadd_ps(product, c->scale, x);
    const __m256 exact = _mm256_fmadd_ps(rest, c->inverse, product);
    const __m256 q = rounding == TO_EVEN_OF_BF16 ? rounded_to_bf16(exact) : exact;
    return integers_of(zeros ? _mm256_add_ps(q, c->zero) : q, rounding == AWAY);
}

/* Converts 16 values to words, in order: packing undoes the order of unpacking. */
ALWAYS_INLINE __m256i nearest16(const uint16_t *values, const code_lanes *c, bool zeros, how rounding)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)values), none = _mm256_setzero_si256();
    return _mm256_packs_epi32(nearest(_mm256_unpacklo_epi16(none, x), c, zeros, rounding),
                              nearest(_mm256_unpackhi_epi16(none, x), c, zeros, rounding));
}

/* Returns true if no reciprocal or remainder can be subnormal and no quotient can exceed 2^30. */
ALWAYS_INLINE bool is_usual(float scale, uint32_t amax)
{
    return scale >= 0x1p-100f && scale <= 0x1p100f && tsr_f32_from_bits(amax) <= scale * 0x1p30f;
}

/* Encodes group g of n columns, and prefetches from `next` on three lines for every four that it reads. The remainder
 * of 32 columns, and unusual groups, are left to the definition. */
ALWAYS_INLINE void encode_group(const uint16_t *x, size_t n, const uint16_t *next, const tsr_int_row *row, size_t g,
                                bool zeros, how rounding, int8_t *codes)
{
    const __m256i low = _mm256_set1_epi8((int8_t)row->low), high = _mm256_set1_epi8((int8_t)row->high);
    const code_lanes c = {_mm256_set1_ps(row->scale[g]), _mm256_set1_ps(1 / row->scale[g]),
                          zeros ? _mm256_set1_ps(row->zero[g]) : _mm256_setzero_ps()};
    const size_t whole = is_usual(row->scale[g], row->amax[g]) ? n - n % 32 : 0;
    for (size_t i = 0; i < whole; i += 32) {
        _mm_prefetch((const char *)(next + i / 4 * 3), _MM_HINT_T0);
        const __m256i mixed =
            _mm256_packs_epi16(nearest16(x + i, &c, zeros, rounding), nearest16(x + i + 16, &c, zeros, rounding));
        const __m256i all = _mm256_permute4x64_epi64(mixed, _MM_SHUFFLE(3, 1, 2, 0));
        _mm256_storeu_si256((__m256i *)(codes + i), _mm256_min_epi8(_mm256_max_epi8(all, low), high));
    }
    if (whole == n)
        return;
    tsr_int_row rest = *row;
    rest.scale += g;
    rest.zero = zeros ? row->zero + g : NULL;
    tsr_encode_int_bf16_ref(x + whole, n - whole, n - whole, &rest, codes + whole);
}

ALWAYS_INLINE void encode_groups(const uint16_t *x, size_t cols, size_t group, const tsr_int_row *row, bool zeros,
                                 how rounding, int8_t *codes)
{
    for (size_t first = 0, g = 0; first < cols; first += group, g++) {
        const size_t n = cols - first < group ? cols - first : group;
        const uint16_t *const next = x + cols + cols / 4 + first / 4 * 3;
        if (group == 32 && n == 32)
            encode_group(x + first, 32, next, row, g, zeros, rounding, codes + first);
        else
            encode_group(x + first, n, next, row, g, zeros, rounding, codes + first);
    }
}

void tsr_encode_int_bf16_avx2(const uint16_t *x, size_t cols, size_t group, const tsr_int_row *row, int8_t *codes)
{
    if (row->bf16 && (row->zero != NULL || row->away))
        tsr_encode_int_bf16_ref(x, cols, group, row, codes);
    else if (row->zero != NULL && row->away)
        encode_groups(x, cols, group, row, true, AWAY, codes);
    else if (row->zero != NULL)
        encode_groups(x, cols, group, row, true, TO_EVEN, codes);
    else if (row->away)
        encode_groups(x, cols, group, row, false, AWAY, codes);
    else if (row->bf16)
        encode_groups(x, cols, group, row, false, TO_EVEN_OF_BF16, codes);
    else
        encode_groups(x, cols, group, row, false, TO_EVEN, codes);
}
