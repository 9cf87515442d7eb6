/* The int kernels with AVX-512. The quotient is a product with the reciprocal, but where that comes so near a tie that
 * the quotient might fall on the other side: there the division is made. */
#define TSR_INT(name) tsr_##name##_avx512
#include "kernels/cpu/int_quant_body.h"

#include <immintrin.h>

enum { CHUNK = 4096 };

typedef struct half {
    __m512 q2, e2, qv, max_e;
    __m512i max_at;
} half;

typedef struct counts {
    uint64_t nonzero, flushed, saturated;
} counts;

static inline __m512 rounded(__m512 x, bool away)
{
    if (!away)
        return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __mmask16 up = _mm512_cmp_ps_mask(_mm512_abs_ps(_mm512_sub_ps(x, whole)), _mm512_set1_ps(0.5f), _CMP_GE_OQ);
    const __m512 one = _mm512_or_ps(_mm512_and_ps(x, _mm512_set1_ps(-0.0f)), _mm512_set1_ps(1.0f));
    return _mm512_mask_add_ps(whole, up, whole, one);
}

/* 16 elements; those that are not live are zeros that count for nothing. */
static inline void sixteen(const float *x, __mmask16 live, uint32_t at, const tsr_int_code *code, __m512 boost,
                           __m512 inverse, int8_t *codes, half *h, counts *n)
{
    const __m512 zero = _mm512_set1_ps(code->zero), low = _mm512_set1_ps(code->low), high = _mm512_set1_ps(code->high);
    const __m512 value = _mm512_maskz_loadu_ps(live, x), q = _mm512_mul_ps(_mm512_mul_ps(value, boost), inverse);
    __m512 t = _mm512_add_ps(q, zero);
    /* The product is within 2 ulp of the quotient, which is below 256: 2^-14 apart at most. */
    const __m512 fraction = _mm512_abs_ps(_mm512_sub_ps(t, rounded(t, false)));
    if (__builtin_expect(_mm512_cmp_ps_mask(fraction, _mm512_set1_ps(0.4999f), _CMP_NLT_UQ) != 0, 0))
        t = _mm512_add_ps(_mm512_div_ps(value, _mm512_set1_ps(code->scale)), zero);
    const __m512 r = rounded(_mm512_min_ps(_mm512_max_ps(t, low), high), code->away);
    const __m512 v = _mm512_sub_ps(r, zero), e = _mm512_sub_ps(q, v), size = _mm512_abs_ps(e);
    _mm_mask_storeu_epi8(codes, live, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(r)));
    h->q2 = _mm512_mask_add_ps(h->q2, live, h->q2, _mm512_mul_ps(q, q));
    h->e2 = _mm512_mask_add_ps(h->e2, live, h->e2, _mm512_mul_ps(e, e));
    h->qv = _mm512_mask_add_ps(h->qv, live, h->qv, _mm512_mul_ps(q, v));
    const __mmask16 larger = _mm512_mask_cmp_ps_mask(live, size, h->max_e, _CMP_GT_OQ);
    h->max_e = _mm512_mask_mov_ps(h->max_e, larger, size);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    h->max_at = _mm512_mask_add_epi32(h->max_at, larger, lane, _mm512_set1_epi32((int)at));
    const __mmask16 nonzero = _mm512_mask_cmp_ps_mask(live, value, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    const __mmask16 above = _mm512_mask_cmp_ps_mask(live, t, _mm512_add_ps(high, _mm512_set1_ps(0.5f)), _CMP_GT_OQ);
    const __mmask16 below = _mm512_mask_cmp_ps_mask(live, t, _mm512_sub_ps(low, _mm512_set1_ps(0.5f)), _CMP_LT_OQ);
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

static inline __mmask16 live_of(size_t left)
{
    return (__mmask16)(left >= 16 ? 0xFFFF : (1u << left) - 1);
}

void tsr_quantize_int_avx512(const float *x, size_t n, const tsr_int_code *code, int8_t *codes, tsr_int_error *error)
{
    const float k = TSR_INT_BOOST(code->scale);
    const __m512 boost = _mm512_set1_ps(k), inverse = _mm512_set1_ps(1 / (code->scale * k));
    const half none = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                       _mm512_setzero_si512()};
    counts total = {0, 0, 0};
    *error = (tsr_int_error){0};
    for (size_t first = 0; first < n; first += CHUNK) {
        const size_t end = n - first < CHUNK ? n : first + CHUNK;
        half even = none, odd = none;
        size_t i = first;
        for (; i + LANES <= end; i += LANES) {
            const uint32_t at = (uint32_t)(i - first);
            sixteen(x + i, 0xFFFF, at, code, boost, inverse, codes + i, &even, &total);
            sixteen(x + i + 16, 0xFFFF, at + 16, code, boost, inverse, codes + i + 16, &odd, &total);
        }
        for (half *h = &even; i < end; i += 16, h = &odd)
            sixteen(x + i, live_of(end - i), (uint32_t)(i - first), code, boost, inverse, codes + i, h, &total);
        add_chunk(error, &even, &odd, first);
    }
    error->nonzero = total.nonzero;
    error->flushed = total.flushed;
    error->saturated = total.saturated;
}
