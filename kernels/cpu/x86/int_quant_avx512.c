/* Integer quantization with AVX-512. BF16 values are encoded without division, and per-group work is done for 16 groups
 * at a time.
 *
 * The next row is prefetched while a row is processed: a quarter of it while ranges are computed, which takes about a
 * quarter of the time, and the rest while codes are computed. */
#define TSR_INT(name)    tsr_##name##_avx512
#define TSR_FINDS_AMAX   1
#define TSR_FINDS_RANGES 1
#include "kernels/cpu/error_unit.h"
#include "kernels/cpu/int_quant_body.h"
#include "kernels/cpu/x86/simd_avx512.h"

/* with the words */
#include "kernels/cpu/x86/int_error_body.h"

enum { TOGETHER = 16 };

/* Loads 16 values of either dtype; those that are not live are zeros. */
static inline __m512 load_bf16(const uint16_t *x, __mmask16 live)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(live, x)), 16));
}

static inline __m512 load_f32(const float *x, __mmask16 live)
{
    return _mm512_maskz_loadu_ps(live, x);
}

static inline __mmask16 live_of(size_t left)
{
    return (__mmask16)(left >= 16 ? 0xFFFF : (1u << left) - 1);
}

/* ---- ranges ---- */

/* Returns the larger of each two adjacent 32-bit lanes, word by word: those of a, then those of b, within each 128-bit
 * quarter of the register. */
static inline __m512i larger_of_lanes(__m512i a, __m512i b)
{
    const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
    const __m512 even = _mm512_shuffle_ps(x, y, 0x88), odd = _mm512_shuffle_ps(x, y, 0xDD);
    return _mm512_max_epu16(_mm512_castps_si512(even), _mm512_castps_si512(odd));
}

/* The same for adjacent quarters. */
static inline __m512i larger_of_quarters(__m512i a, __m512i b)
{
    return _mm512_max_epu16(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
}

/* Sets lane i to the largest word of v[i], a BF16, in FP32. */
static inline __m512i largest_of_each(const __m512i v[TOGETHER])
{
    __m512i four[4]; /* each quarter has a lane for each of four groups */
    for (int i = 0; i < 4; i++)
        four[i] = larger_of_lanes(larger_of_lanes(v[4 * i], v[4 * i + 1]), larger_of_lanes(v[4 * i + 2], v[4 * i + 3]));
    const __m512i all = larger_of_quarters(larger_of_quarters(four[0], four[1]), larger_of_quarters(four[2], four[3]));
    const __m512i both = _mm512_max_epu16(all, _mm512_slli_epi32(all, 16));
    return _mm512_and_si512(both, _mm512_set1_epi32((int)0xFFFF0000u));
}

/* Updates the largest magnitude by x, word by word. With `both`, updates both ends of the range: the largest number has
 * the largest bit pattern as a signed word, and the most negative one the largest as an unsigned word. */
static inline void take(__m512i x, bool both, __m512i *high, __m512i *low)
{
    *high =
        both ? _mm512_max_epi16(*high, x) : _mm512_max_epu16(*high, _mm512_and_si512(x, _mm512_set1_epi16(INT16_MAX)));
    *low = both ? _mm512_max_epu16(*low, x) : *low;
}

/* Computes the range of one group, and prefetches a quarter as many cache lines as it reads. */
static inline __attribute__((always_inline)) void find(const uint16_t *x, size_t n, const uint16_t *next, bool both,
                                                       __m512i *high_of, __m512i *low_of)
{
    __m512i high = _mm512_setzero_si512(), low = _mm512_set1_epi16(INT16_MIN);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        _mm_prefetch(next + i / 4, _MM_HINT_T0);
        take(_mm512_loadu_si512(x + i), both, &high, &low);
    }
    if (i != n)
        take(_mm512_maskz_loadu_epi16((1u << (n - i)) - 1, x + i), both, &high, &low);
    *high_of = high;
    *low_of = low;
}

static inline __attribute__((always_inline)) void find_all(const uint16_t *x, size_t cols, size_t group, bool both,
                                                           void *low, void *high)
{
    __m512i most[TOGETHER] = {0}, least[TOGETHER] = {0}; /* entries after the last group are unused */
    for (size_t first = 0, at = 0; first < cols; first += TOGETHER * group, at += TOGETHER) {
        size_t n = 0;
        if (group % 32 == 0 && cols - first >= TOGETHER * group) {
#pragma GCC unroll 16
            for (; n < TOGETHER; n++)
                find(x + first + n * group, group & ~(size_t)31, x + cols + (first + n * group) / 4, both, &most[n],
                     &least[n]);
        } else {
            for (size_t from = first; n < TOGETHER && from < cols; n++, from += group)
                find(x + from, cols - from < group ? cols - from : group, x + cols + from / 4, both, &most[n],
                     &least[n]);
        }
        _mm512_mask_storeu_epi32((uint32_t *)high + at, live_of(n), largest_of_each(most));
        if (both)
            _mm512_mask_storeu_epi32((uint32_t *)low + at, live_of(n), largest_of_each(least));
    }
}

/* Processes 16 groups of 16: two of them in a register, then four, one in each quarter. */
static inline __m512i largest_of_sixteens(const uint16_t *x)
{
    const __m512i magnitude = _mm512_set1_epi16(INT16_MAX);
    __m512i four[4];
    for (int i = 0; i < 4; i++)
        four[i] = larger_of_quarters(_mm512_and_si512(_mm512_loadu_si512(x + 64 * i), magnitude),
                                     _mm512_and_si512(_mm512_loadu_si512(x + 64 * i + 32), magnitude));
    const __m512i all = larger_of_lanes(larger_of_lanes(four[0], four[1]), larger_of_lanes(four[2], four[3]));
    const __m512i both = _mm512_max_epu16(all, _mm512_slli_epi32(all, 16));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, _mm512_and_si512(both, _mm512_set1_epi32((int)0xFFFF0000u)));
}

static void amax_of_sixteens(const uint16_t *x, size_t cols, uint32_t *amax)
{
    enum { SIXTEENS = 16 * TOGETHER };
    size_t i = 0;
    for (; i + SIXTEENS <= cols; i += SIXTEENS) {
        for (size_t line = 0; line < SIXTEENS / 4; line += 32)
            _mm_prefetch(x + cols + i / 4 + line, _MM_HINT_T0);
        _mm512_storeu_si512(amax + i / 16, largest_of_sixteens(x + i));
    }
    find_all(x + i, cols - i, 16, false, NULL, amax + i / 16);
}

void tsr_amax_groups_bf16_avx512(const uint16_t *x, size_t cols, size_t group, uint32_t *amax)
{
    if (group == 16)
        amax_of_sixteens(x, cols, amax);
    else
        find_all(x, cols, group, false, NULL, amax);
}

void tsr_range_groups_bf16_avx512(const uint16_t *x, size_t cols, size_t group, float *low, float *high)
{
    find_all(x, cols, group, true, low, high);
}

/* ---- codes ---- */

/* Rounds to nearest. To round ties away from zero, it adds the largest number below one half, which lifts a tie to the
 * next integer but no value below a tie. */
static inline __m512i integers_of(__m512 t, bool away)
{
    if (!away)
        return _mm512_cvtps_epi32(t);
    const __m512 below_half = _mm512_or_ps(_mm512_and_ps(t, _mm512_set1_ps(-0.0f)), _mm512_set1_ps(0x1.FFFFFEp-2f));
    return _mm512_cvttps_epi32(_mm512_add_ps(t, below_half));
}

/* Rounds to the nearest BF16, ties to even. q must not be NaN. */
static inline __m512 rounded_to_bf16(__m512 q)
{
    const __m512i bits = _mm512_castps_si512(q),
                  odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    return _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32((int)0xFFFF0000u)));
}

/* Encodes 16 values of group g by division, as the definition does. */
static inline __m128i divided(__m512 value, const tsr_int_row *row, size_t g, bool bf16)
{
    const __m512 exact = _mm512_div_ps(value, _mm512_set1_ps(row->scale[g]));
    const __m512 t = _mm512_add_ps(bf16 ? rounded_to_bf16(exact) : exact, _mm512_set1_ps(zero_of(row, g)));
    const __m512 inside = _mm512_min_ps(_mm512_max_ps(t, _mm512_set1_ps(row->low)), _mm512_set1_ps(row->high));
    return _mm512_cvtepi32_epi8(integers_of(inside, row->away));
}

typedef struct group_table {
    float scale[TOGETHER], inverse[TOGETHER], zero[TOGETHER];
} group_table;

/* Fills the table for groups [g, g + n). Returns false if a reciprocal or a remainder might be subnormal, or a quotient
 * above 2^30. */
static inline bool tabulate(const tsr_int_row *row, size_t g, size_t n, group_table *t)
{
    const __m512 one = _mm512_set1_ps(1);
    const __m512 scale = _mm512_mask_loadu_ps(one, live_of(n), row->scale + g), inverse = _mm512_div_ps(one, scale);
    const __m512i amax = _mm512_maskz_loadu_epi32(live_of(n), row->amax + g);
    _mm512_storeu_ps(t->scale, scale);
    _mm512_storeu_ps(t->inverse, inverse);
    if (row->zero != NULL)
        _mm512_storeu_ps(t->zero, _mm512_maskz_loadu_ps(live_of(n), row->zero + g));
    const __m512 most = _mm512_mul_ps(scale, _mm512_set1_ps(0x1p30f));
    return (_mm512_cmp_ps_mask(scale, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ) &
            _mm512_cmp_ps_mask(scale, _mm512_set1_ps(0x1p100f), _CMP_LE_OQ) &
            _mm512_cmp_ps_mask(_mm512_castsi512_ps(amax), most, _CMP_LE_OQ)) == 0xFFFF;
}

/* Rounding of a quotient; a constant in each caller. */
typedef enum how { TO_EVEN, AWAY, TO_EVEN_OF_BF16 } how;

typedef struct code_lanes {
    __m512 scale, inverse, zero;
} code_lanes;

static inline code_lanes lanes_of(const group_table *t, size_t g, bool zeros)
{
    return (code_lanes){_mm512_set1_ps(t->scale[g]), _mm512_set1_ps(t->inverse[g]),
                        zeros ? _mm512_set1_ps(t->zero[g]) : _mm512_setzero_ps()};
}

/* Rounds quotient + zero point to integers for 16 BF16 values in the upper halves of lanes. One correction with the
 * exact remainder turns the product with the rounded reciprocal into the rounded quotient (Markstein 1990). This was
 * verified for all 2^30 pairs of significands of a BF16 and an FP32. */
static inline __m512i nearest(__m512i bits, const code_lanes *c, bool zeros, how rounding)
{
    const __m512 x = _mm512_castsi512_ps(bits);
    const __m512 product = _mm512_mul_ps(x, c->inverse), rest = _mm512_fnmadd_ps(product, c->scale, x);
    const __m512 exact = _mm512_fmadd_ps(rest, c->inverse, product);
    const __m512 q = rounding == TO_EVEN_OF_BF16 ? rounded_to_bf16(exact) : exact;
    return integers_of(zeros ? _mm512_add_ps(q, c->zero) : q, rounding == AWAY);
}

/* Converts 32 values to 16 bits, in order: packing undoes the order of unpacking. */
static inline __m512i nearest32(__m512i x, const code_lanes *c, bool zeros, how rounding)
{
    const __m512i none = _mm512_setzero_si512();
    return _mm512_packs_epi32(nearest(_mm512_unpacklo_epi16(none, x), c, zeros, rounding),
                              nearest(_mm512_unpackhi_epi16(none, x), c, zeros, rounding));
}

/* Encodes 64 values, the second half of which may belong to another group. */
static inline __m512i encode64(__m512i first, const code_lanes *a, __m512i second, const code_lanes *b, bool zeros,
                               how rounding, __m512i low, __m512i high)
{
    const __m512i quarters = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i mixed =
        _mm512_packs_epi16(nearest32(first, a, zeros, rounding), nearest32(second, b, zeros, rounding));
    return _mm512_permutexvar_epi64(quarters, _mm512_min_epi8(_mm512_max_epi8(mixed, low), high));
}

/* Encodes the groups of the table, two groups of 32 together. Prefetches from `next` on three lines for every four that
 * it reads. */
static inline __attribute__((always_inline)) void encode_groups(const uint16_t *x, size_t cols, size_t group,
                                                                const uint16_t *next, const tsr_int_row *row,
                                                                const group_table *t, bool zeros, how rounding,
                                                                int8_t *codes)
{
    const __m512i low = _mm512_set1_epi8((int8_t)row->low), high = _mm512_set1_epi8((int8_t)row->high);
    const size_t second = group == 32, step = group << second;
    for (size_t first = 0, g = 0; first < cols; first += step, g += 1 + second) {
        const size_t end = cols - first < step ? cols : first + step;
        const code_lanes a = lanes_of(t, g, zeros), b = lanes_of(t, g + second, zeros);
        size_t i = first;
        for (; i + 64 <= end; i += 64) {
            _mm_prefetch(next, _MM_HINT_T0);
            _mm_prefetch(next + 32, _MM_HINT_T0);
            next += 48;
            const __m512i here = _mm512_loadu_si512(x + i), there = _mm512_loadu_si512(x + i + 32);
            _mm512_storeu_si512(codes + i, encode64(here, &a, there, &b, zeros, rounding, low, high));
        }
        if (i == end)
            continue;
        const __mmask64 live = ((__mmask64)1 << (end - i)) - 1;
        const __m512i here = _mm512_maskz_loadu_epi16((__mmask32)live, x + i);
        const __m512i there = _mm512_maskz_loadu_epi16((__mmask32)(live >> 32), x + i + 32);
        _mm512_mask_storeu_epi8(codes + i, live, encode64(here, &a, there, &b, zeros, rounding, low, high));
    }
}

#define DIVIDE(load, bf16)                                                                                           \
    for (size_t first = 0; first < cols; first += group, g++) {                                                      \
        const size_t end = cols - first < group ? cols : first + group;                                              \
        for (size_t i = first; i < end; i += 16)                                                                     \
            _mm_mask_storeu_epi8(codes + i, live_of(end - i), divided(load(x + i, live_of(end - i)), row, g, bf16)); \
    }

/* Encodes groups from g on by division. */
static void divide_bf16(const uint16_t *x, size_t cols, size_t group, const tsr_int_row *row, size_t g, int8_t *codes)
{
    DIVIDE(load_bf16, row->bf16)
}

void tsr_encode_int_bf16_avx512(const uint16_t *x, size_t cols, size_t group, const tsr_int_row *row, int8_t *codes)
{
    for (size_t at = 0, g = 0; at < cols; at += TOGETHER * group, g += TOGETHER) {
        const size_t here = cols - at < TOGETHER * group ? cols - at : TOGETHER * group;
        group_table t;
        const uint16_t *const next = x + cols + cols / 4 + at / 4 * 3;
        if (!tabulate(row, g, (here + group - 1) / group, &t) || (row->bf16 && (row->zero != NULL || row->away)))
            divide_bf16(x + at, here, group, row, g, codes + at);
        else if (row->zero != NULL && row->away)
            encode_groups(x + at, here, group, next, row, &t, true, AWAY, codes + at);
        else if (row->zero != NULL)
            encode_groups(x + at, here, group, next, row, &t, true, TO_EVEN, codes + at);
        else if (row->away)
            encode_groups(x + at, here, group, next, row, &t, false, AWAY, codes + at);
        else if (row->bf16)
            encode_groups(x + at, here, group, next, row, &t, false, TO_EVEN_OF_BF16, codes + at);
        else
            encode_groups(x + at, here, group, next, row, &t, false, TO_EVEN, codes + at);
    }
}

void tsr_encode_int_f32_avx512(const float *x, size_t cols, size_t group, const tsr_int_row *row, int8_t *codes)
{
    size_t g = 0;
    DIVIDE(load_f32, false)
}
