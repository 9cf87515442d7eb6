/* The int kernels with AVX-512. From BF16 the quotient is a product with the reciprocal, but where that comes so near a
 * tie that the quotient might fall on the other side: there the division is made. */
#define TSR_INT(name)         tsr_##name##_avx512
#define TSR_FINDS_AMAX_GROUPS 1
#include "kernels/cpu/int_quant_body.h"

#include <immintrin.h>

enum { CHUNK = 4096 };

/* 16 values of either dtype; those that are not live are zeros. */
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

static inline __m512i magnitude(__m512i x)
{
    return _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
}

static inline uint32_t largest_word(__m512i x)
{
    const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    const __m128i eight = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return (uint16_t)~_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi32(-1))));
}

void tsr_amax_groups_bf16_avx512(const uint16_t *x, size_t cols, size_t group, uint32_t *amax)
{
    for (size_t first = 0; first < cols; first += group) {
        const size_t end = cols - first < group ? cols : first + group;
        __m512i a = _mm512_setzero_si512(), b = a;
        size_t i = first;
        for (; i + 64 <= end; i += 64) {
            a = _mm512_max_epu16(a, magnitude(_mm512_loadu_si512(x + i)));
            b = _mm512_max_epu16(b, magnitude(_mm512_loadu_si512(x + i + 32)));
        }
        if (i != end) {
            const __mmask64 live = ((__mmask64)1 << (end - i)) - 1;
            a = _mm512_max_epu16(a, magnitude(_mm512_maskz_loadu_epi16((__mmask32)live, x + i)));
            b = _mm512_max_epu16(b, magnitude(_mm512_maskz_loadu_epi16((__mmask32)(live >> 32), x + i + 32)));
        }
        *amax++ = largest_word(_mm512_max_epu16(a, b)) << 16;
    }
}

/* ---- codes ---- */

static inline __m512 rounded(__m512 x, bool away)
{
    if (!away)
        return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __mmask16 up = _mm512_cmp_ps_mask(_mm512_abs_ps(_mm512_sub_ps(x, whole)), _mm512_set1_ps(0.5f), _CMP_GE_OQ);
    const __m512 one = _mm512_or_ps(_mm512_and_ps(x, _mm512_set1_ps(-0.0f)), _mm512_set1_ps(1.0f));
    return _mm512_mask_add_ps(whole, up, whole, one);
}

/* The definition on 16 values: the division. */
static inline __m128i divided(__m512 value, const tsr_int_code *code)
{
    const __m512 t = _mm512_add_ps(_mm512_div_ps(value, _mm512_set1_ps(code->scale)), _mm512_set1_ps(code->zero));
    const __m512 inside = _mm512_min_ps(_mm512_max_ps(t, _mm512_set1_ps(code->low)), _mm512_set1_ps(code->high));
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(rounded(inside, code->away)));
}

/* Adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in the lowest bits of the sum. */
#define MAGIC 0x1.8p23f

typedef struct code_lanes {
    __m512 inverse, magic;                /* and zero */
    __m512i low, high;                    /* of 16-bit lanes, as all that follow */
    __m512i amax, of_amax, of_minus_amax; /* the pattern; the codes of amax and -amax */
} code_lanes;

static inline code_lanes lanes_of(const tsr_int_code *code)
{
    uint32_t amax;
    memcpy(&amax, &code->amax, sizeof amax);
    return (code_lanes){
        .inverse = _mm512_set1_ps(1 / code->scale),
        .magic = _mm512_set1_ps(MAGIC + code->zero),
        .low = _mm512_set1_epi16((int16_t)code->low),
        .high = _mm512_set1_epi16((int16_t)code->high),
        .amax = _mm512_set1_epi16((int16_t)(amax >> 16)),
        .of_amax = _mm512_set1_epi16((int16_t)code_of(code->amax / code->scale + code->zero, code)),
        .of_minus_amax = _mm512_set1_epi16((int16_t)code_of(-code->amax / code->scale + code->zero, code)),
    };
}

/* x * inverse + zero as an integer in the lowest bits, and how far from it that was. */
static inline __m512i nearest(__m512i x, const code_lanes *c, __m512 *distance)
{
    const __m512 sum = _mm512_fmadd_ps(_mm512_castsi512_ps(x), c->inverse, c->magic);
    *distance = _mm512_fmsub_ps(_mm512_castsi512_ps(x), c->inverse, _mm512_sub_ps(sum, c->magic));
    return _mm512_castps_si512(sum);
}

/* Whether the quotient, which the product is within 2^-14 of where codes do not clamp it, may fall on another side of a
 * tie. */
static inline bool near_tie(__m512 a, __m512 b)
{
    enum { LARGER_MAGNITUDE = 0x0B };
    const __m512 distance = _mm512_range_ps(a, b, LARGER_MAGNITUDE);
    return _mm512_cmp_ps_mask(distance, _mm512_set1_ps(0.4999f), _CMP_NLT_UQ) != 0;
}

/* 32 values of BF16. `ends`: the largest of a group lies on a tie by the usual formulas (its scale is amax / 7.5), and
 * its code is known: worth looking for where groups are short. `bytes`: codes fill a byte, which then clamps. */
static inline __attribute__((always_inline)) void encode32(const uint16_t *x, const tsr_int_code *code,
                                                           const code_lanes *c, bool ends, bool bytes, int8_t *codes)
{
    const __m512i all = _mm512_loadu_si512(x);
    __mmask32 rest = ~(__mmask32)0;
    __m512i raw = all;
    __m512 d[2];
    if (ends) {
        rest = _mm512_cmpneq_epu16_mask(_mm512_and_si512(all, _mm512_set1_epi16(0x7FFF)), c->amax);
        raw = _mm512_maskz_mov_epi16(rest, all);
    }
    const __m512i even = nearest(_mm512_slli_epi32(raw, 16), c, &d[0]);
    const __m512i odd = nearest(_mm512_and_si512(raw, _mm512_set1_epi32((int)0xFFFF0000u)), c, &d[1]);
    if (__builtin_expect(near_tie(d[0], d[1]), 0)) {
        _mm_storeu_si128((__m128i *)codes, divided(load_bf16(x, 0xFFFF), code));
        _mm_storeu_si128((__m128i *)(codes + 16), divided(load_bf16(x + 16, 0xFFFF), code));
        return;
    }
    __m512i both = _mm512_mask_mov_epi16(even, 0xAAAAAAAAu, _mm512_slli_epi32(odd, 16));
    if (!bytes)
        both = _mm512_min_epi16(_mm512_max_epi16(both, c->low), c->high);
    if (ends) {
        const __m512i known = _mm512_mask_mov_epi16(c->of_amax, _mm512_movepi16_mask(all), c->of_minus_amax);
        both = _mm512_mask_mov_epi16(known, rest, both);
    }
    _mm256_storeu_si256((__m256i *)codes, _mm512_cvtsepi16_epi8(both));
}

/* Whether the reciprocal is of use, and codes fit 16 bits before they are clamped. */
static inline bool is_usual(const tsr_int_code *code)
{
    return code->scale >= 0x1p-100f && code->amax <= 0x1p14f * code->scale;
}

/* Whole runs of 32 of one group; returns where they end. */
static inline __attribute__((always_inline)) size_t encode_runs(const uint16_t *x, size_t n, size_t row,
                                                                const tsr_int_code *code, bool ends, bool bytes,
                                                                int8_t *codes)
{
    const code_lanes c = lanes_of(code);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        _mm_prefetch(x + i + row, _MM_HINT_T0);
        encode32(x + i, code, &c, ends, bytes, codes + i);
    }
    return i;
}

/* ---- int4 without zero points: no arithmetic on the values ---- */

/* T[k], k = 1..8, is the least BF16 pattern of |x| that has a code of k or more. u = |x| - (T[1] - 1) in patterns, or
 * 0. In buckets of 16 of them T[k] = T[1] + 128 log2(2k - 1) and a little lies, whatever the scale, in 0, 12-13, 18-19,
 * 22, 25, 27-28, 29-30 and 31: no bucket has two. So a sum with one entry of its bucket gives u / 16 the code:
 * u + entry = 16 * (8 + |code|) + 0..15. Beyond, buckets repeat and sums are 640 or more, which saturate. */
typedef struct int4_lanes {
    __m512i entry, before; /* 16-bit lanes; T[1] - 1 */
} int4_lanes;

/* The k of each bucket's entry. */
static const uint8_t kThreshold[32] = {1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3,
                                       3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 6, 6, 7, 7, 8};

/* What the entries of all scales have in common: where to find that of k among 16-bit lanes, and what it is if all of
 * the bucket is before T[k], and if all is after. */
typedef struct buckets {
    __m512i place, before, after;
} buckets;

static inline buckets buckets_of_all(void)
{
    const __m512i bucket = _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13,
                                            12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i k = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)kThreshold));
    const __m512i code = _mm512_add_epi16(k, _mm512_set1_epi16(8));
    const __m512i after = _mm512_slli_epi16(_mm512_sub_epi16(code, bucket), 4);
    return (buckets){
        .place = _mm512_slli_epi16(_mm512_sub_epi16(k, _mm512_set1_epi16(1)), 1),
        .before = _mm512_sub_epi16(after, _mm512_set1_epi16(16)),
        .after = after,
    };
}

/* From each tie half the gap to the next FP32: that below where a tie goes up, else that above. [away] */
static const float kHalfGap[2][8] = {
    {0x1p-25f, -0x1p-24f, 0x1p-23f, -0x1p-23f, 0x1p-22f, -0x1p-22f, 0x1p-22f, -0x1p-22f},
    {-0x1p-26f, -0x1p-24f, -0x1p-23f, -0x1p-23f, -0x1p-22f, -0x1p-22f, -0x1p-22f, -0x1p-22f},
};

/* A quotient rounds to the tie h or more when x / scale is at least h less half the gap below, and to more than h when
 * it is beyond h and half the gap above. Either bound times the scale has too many bits to be a BF16; the sum of its
 * two exact products is rounded once, up, as is then its pattern. */
static inline int4_lanes int4_lanes_of(const tsr_int_code *code, const buckets *b)
{
    const __m256 ties = _mm256_setr_ps(0.5f, 1.5f, 2.5f, 3.5f, 4.5f, 5.5f, 6.5f, 7.5f);
    const __m256i full = _mm256_setr_epi32(144, 160, 176, 192, 208, 224, 240, 256);
    const __m512 scale = _mm512_set1_ps(code->scale);
    const __m512 half_gap = _mm512_mul_ps(scale, _mm512_castps256_ps512(_mm256_loadu_ps(kHalfGap[code->away])));
    const __m512i bound = _mm512_castps_si512(_mm512_fmadd_round_ps(scale, _mm512_castps256_ps512(ties), half_gap,
                                                                    _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC));
    const __m512i t = _mm512_srli_epi32(_mm512_add_epi32(bound, _mm512_set1_epi32(0xFFFF)), 16);
    const __m512i before = _mm512_sub_epi16(_mm512_broadcastw_epi16(_mm512_castsi512_si128(t)), _mm512_set1_epi16(1));
    const __m512i of_k = _mm512_permutexvar_epi16(b->place, _mm512_sub_epi32(_mm512_castsi256_si512(full), t));
    const __m512i here = _mm512_add_epi16(of_k, before);
    return (int4_lanes){.entry = _mm512_max_epi16(b->before, _mm512_min_epi16(b->after, here)), .before = before};
}

/* Whether codes are of such a range, and no tie is near subnormal numbers. */
static bool are_int4(const tsr_int_code *code, size_t n)
{
    const __m128 from = _mm_setr_ps(0x1p-100f, 0, -8, 7), to = _mm_setr_ps(INFINITY, 0, -8, 7);
    __m128 least = from, most = to;
    for (size_t i = 0; i < n; i++) {
        const __m128 range = _mm_setr_ps(code[i].scale, code[i].zero, code[i].low, code[i].high);
        least = _mm_min_ps(least, range);
        most = _mm_max_ps(most, range);
    }
    return _mm_movemask_ps(_mm_and_ps(_mm_cmpeq_ps(least, from), _mm_cmpeq_ps(most, to))) == 15;
}

/* 16 * (8 + code) and up to 15 more, below 0 and above 255 where codes are clamped. */
static inline __m512i sixteenths(__m512i x, const int4_lanes *c)
{
    const __m512i u = _mm512_subs_epu16(magnitude(x), c->before);
    const __m512i sum = _mm512_add_epi16(u, _mm512_permutexvar_epi16(_mm512_srli_epi16(u, 4), c->entry));
    return _mm512_mask_sub_epi16(sum, _mm512_movepi16_mask(x), _mm512_set1_epi16(16 * 16 + 15), sum);
}

static inline __m512i int4_codes(__m512i first, __m512i second, const int4_lanes *c)
{
    const __m512i both = _mm512_packus_epi16(sixteenths(first, c), sixteenths(second, c));
    const __m512i from_zero = _mm512_and_si512(_mm512_srli_epi16(both, 4), _mm512_set1_epi8(15));
    const __m512i quarters = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return _mm512_permutexvar_epi64(quarters, _mm512_sub_epi8(from_zero, _mm512_set1_epi8(8)));
}

/* A row of which all codes are such. */
static void encode_int4(const uint16_t *x, size_t cols, size_t group, const tsr_int_code *code, int8_t *codes)
{
    const buckets all = buckets_of_all();
    for (size_t first = 0; first < cols; first += group, code++) {
        const size_t end = cols - first < group ? cols : first + group;
        const int4_lanes c = int4_lanes_of(code, &all);
        size_t i = first;
        for (; i + 64 <= end; i += 64) {
            _mm_prefetch(x + i + cols, _MM_HINT_T0);
            _mm_prefetch(x + i + 32 + cols, _MM_HINT_T0);
            _mm512_storeu_si512(codes + i, int4_codes(_mm512_loadu_si512(x + i), _mm512_loadu_si512(x + i + 32), &c));
        }
        if (i == end)
            continue;
        _mm_prefetch(x + i + cols, _MM_HINT_T0);
        const __mmask64 live = ((__mmask64)1 << (end - i)) - 1;
        const __m512i here = _mm512_maskz_loadu_epi16((__mmask32)live, x + i);
        const __m512i next = _mm512_maskz_loadu_epi16((__mmask32)(live >> 32), x + i + 32);
        _mm512_mask_storeu_epi8(codes + i, live, int4_codes(here, next, &c));
    }
}

void tsr_encode_int_bf16_avx512(const uint16_t *x, size_t cols, size_t group, const tsr_int_code *code, int8_t *codes)
{
    enum { SHORT_GROUP = 1024 };
    if (are_int4(code, cols / group + (cols % group != 0))) {
        encode_int4(x, cols, group, code, codes);
        return;
    }
    for (size_t first = 0; first < cols; first += group, code++) {
        const size_t n = cols - first < group ? cols - first : group;
        const bool bytes = code->low == -128 && code->high == 127;
        const uint16_t *const from = x + first;
        int8_t *const to = codes + first;
        size_t i = 0;
        if (is_usual(code) && group > SHORT_GROUP)
            i = bytes ? encode_runs(from, n, cols, code, false, true, to)
                      : encode_runs(from, n, cols, code, false, false, to);
        else if (is_usual(code))
            i = bytes ? encode_runs(from, n, cols, code, true, true, to)
                      : encode_runs(from, n, cols, code, true, false, to);
        for (; i < n; i += 16)
            _mm_mask_storeu_epi8(to + i, live_of(n - i), divided(load_bf16(from + i, live_of(n - i)), code));
    }
}

void tsr_encode_int_f32_avx512(const float *x, size_t cols, size_t group, const tsr_int_code *code, int8_t *codes)
{
    for (size_t first = 0; first < cols; first += group, code++) {
        const size_t end = cols - first < group ? cols : first + group;
        for (size_t i = first; i < end; i += 16)
            _mm_mask_storeu_epi8(codes + i, live_of(end - i), divided(load_f32(x + i, live_of(end - i)), code));
    }
}

/* ---- the error ---- */

typedef struct half {
    __m512 q2, e2, qv, max_e;
    __m512i max_at;
} half;

typedef struct counts {
    uint64_t nonzero, flushed, saturated;
} counts;

typedef struct unit_lanes {
    __m512 boost, inverse, zero, above, below;
} unit_lanes;

/* 16 elements; those that are not live are zeros that count for nothing. */
static inline void sixteen(__m512 value, __mmask16 live, uint32_t at, const unit_lanes *c, const int8_t *codes, half *h,
                           counts *n)
{
    const __m512 q = _mm512_mul_ps(_mm512_mul_ps(value, c->boost), c->inverse), t = _mm512_add_ps(q, c->zero);
    const __m512 r = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(live, codes)));
    const __m512 v = _mm512_sub_ps(r, c->zero), e = _mm512_sub_ps(q, v), size = _mm512_abs_ps(e);
    h->q2 = _mm512_mask_add_ps(h->q2, live, h->q2, _mm512_mul_ps(q, q));
    h->e2 = _mm512_mask_add_ps(h->e2, live, h->e2, _mm512_mul_ps(e, e));
    h->qv = _mm512_mask_add_ps(h->qv, live, h->qv, _mm512_mul_ps(q, v));
    const __mmask16 larger = _mm512_mask_cmp_ps_mask(live, size, h->max_e, _CMP_GT_OQ);
    h->max_e = _mm512_mask_mov_ps(h->max_e, larger, size);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    h->max_at = _mm512_mask_add_epi32(h->max_at, larger, lane, _mm512_set1_epi32((int)at));
    const __mmask16 nonzero = _mm512_mask_cmp_ps_mask(live, value, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    const __mmask16 above = _mm512_mask_cmp_ps_mask(live, t, c->above, _CMP_GT_OQ);
    const __mmask16 below = _mm512_mask_cmp_ps_mask(live, t, c->below, _CMP_LT_OQ);
    n->nonzero += (uint64_t)__builtin_popcount(nonzero);
    n->flushed += (uint64_t)__builtin_popcount(_mm512_mask_cmp_ps_mask(nonzero, v, _mm512_setzero_ps(), _CMP_EQ_OQ));
    n->saturated += (uint64_t)__builtin_popcount(_kor_mask16(above, below));
}

/* Lanes 0..15 and 16..31, as a tree. */
static inline double tree_sum(__m512 first, __m512 second)
{
    const __m512d low =
        _mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(first)), _mm512_cvtps_pd(_mm512_castps512_ps256(second)));
    const __m512d high = _mm512_add_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(first, 1)),
                                       _mm512_cvtps_pd(_mm512_extractf32x8_ps(second, 1)));
    const __m512d eight = _mm512_add_pd(low, high);
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}

static inline void add_chunk(tsr_int_error *error, const half *a, const half *b, size_t first)
{
    error->sum_q2 += tree_sum(a->q2, b->q2);
    error->sum_e2 += tree_sum(a->e2, b->e2);
    error->sum_qv += tree_sum(a->qv, b->qv);
    const float largest = _mm512_reduce_max_ps(_mm512_max_ps(a->max_e, b->max_e));
    if (largest <= error->max_e)
        return;
    const __m512 top = _mm512_set1_ps(largest);
    const uint32_t in_a = _mm512_mask_reduce_min_epu32(_mm512_cmp_ps_mask(a->max_e, top, _CMP_EQ_OQ), a->max_at);
    const uint32_t in_b = _mm512_mask_reduce_min_epu32(_mm512_cmp_ps_mask(b->max_e, top, _CMP_EQ_OQ), b->max_at);
    error->max_e = largest;
    error->max_at = first + (in_a < in_b ? in_a : in_b);
}

#define MEASURE(load)                                                                                                  \
    const float k = TSR_INT_BOOST(code->scale);                                                                        \
    const unit_lanes c = {.boost = _mm512_set1_ps(k),                                                                  \
                          .inverse = _mm512_set1_ps(1 / (code->scale * k)),                                            \
                          .zero = _mm512_set1_ps(code->zero),                                                          \
                          .above = _mm512_set1_ps(code->high + 0.5f),                                                  \
                          .below = _mm512_set1_ps(code->low - 0.5f)};                                                  \
    const half none = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),             \
                       _mm512_setzero_si512()};                                                                        \
    counts total = {0, 0, 0};                                                                                          \
    *error = (tsr_int_error){0};                                                                                       \
    for (size_t first = 0; first < n; first += CHUNK) {                                                                \
        const size_t end = n - first < CHUNK ? n : first + CHUNK;                                                      \
        half even = none, odd = none;                                                                                  \
        size_t i = first;                                                                                              \
        for (; i + LANES <= end; i += LANES) {                                                                         \
            const uint32_t at = (uint32_t)(i - first);                                                                 \
            sixteen(load(x + i, 0xFFFF), 0xFFFF, at, &c, codes + i, &even, &total);                                    \
            sixteen(load(x + i + 16, 0xFFFF), 0xFFFF, at + 16, &c, codes + i + 16, &odd, &total);                      \
        }                                                                                                              \
        for (half *h = &even; i < end; i += 16, h = &odd)                                                              \
            sixteen(load(x + i, live_of(end - i)), live_of(end - i), (uint32_t)(i - first), &c, codes + i, h, &total); \
        add_chunk(error, &even, &odd, first);                                                                          \
    }                                                                                                                  \
    error->nonzero = total.nonzero;                                                                                    \
    error->flushed = total.flushed;                                                                                    \
    error->saturated = total.saturated;

void tsr_error_int_bf16_avx512(const uint16_t *x, size_t n, const tsr_int_code *code, const int8_t *codes,
                               tsr_int_error *error)
{
    MEASURE(load_bf16)
}

void tsr_error_int_f32_avx512(const float *x, size_t n, const tsr_int_code *code, const int8_t *codes,
                              tsr_int_error *error)
{
    MEASURE(load_f32)
}
