/* What E2M1 codes cost, with AVX-512: 16 or 32 elements of a group at once. The sums are the definition's: FP32 products,
 * added in FP64 as a tree. */
#include "kernels/cpu/variants.h"

#include <immintrin.h>

/* 16 lanes. */
typedef struct part {
    __m512 x, q, v, e;
} part;

static inline part part_of(__m512 x, const uint8_t *packed, __m512 boost, __m512 inverse)
{
    const __m512 values = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    const __m512i byte = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)packed));
    const __m512i codes = _mm512_or_si512(byte, _mm512_slli_epi64(byte, 28)); /* low 4 bits of each lane */
    const __m512 q = _mm512_mul_ps(_mm512_mul_ps(x, boost), inverse), v = _mm512_permutexvar_ps(codes, values);
    return (part){x, q, v, _mm512_sub_ps(q, v)};
}

static inline __m512d low_half(__m512 x)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}

static inline __m512d high_half(__m512 x)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}

/* Lanes l and l + 16, then l and l + 8, ... l + 1. */
static inline double tree_sum(__m512 first, __m512 second)
{
    const __m512d eight = _mm512_add_pd(_mm512_add_pd(low_half(first), low_half(second)),
                                        _mm512_add_pd(high_half(first), high_half(second)));
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

static inline uint32_t both(__mmask16 first, __mmask16 second)
{
    return (uint32_t)second << 16 | first;
}

/* `second` is of zeros with codes of zero where the group has 16 elements. */
static inline void sum_up(const part *a, const part *b, tsr_int_error *error)
{
    const __m512 zero = _mm512_setzero_ps(), limit = _mm512_set1_ps(7);
    const __m512 size_a = _mm512_abs_ps(a->e), size_b = _mm512_abs_ps(b->e);
    const __m512 largest = _mm512_set1_ps(_mm512_reduce_max_ps(_mm512_max_ps(size_a, size_b)));
    const uint32_t nonzero =
        both(_mm512_cmp_ps_mask(a->x, zero, _CMP_NEQ_UQ), _mm512_cmp_ps_mask(b->x, zero, _CMP_NEQ_UQ));
    const uint32_t zeros = both(_mm512_cmp_ps_mask(a->v, zero, _CMP_EQ_OQ), _mm512_cmp_ps_mask(b->v, zero, _CMP_EQ_OQ));
    const uint32_t beyond = both(_mm512_cmp_ps_mask(_mm512_abs_ps(a->q), limit, _CMP_GT_OQ),
                                 _mm512_cmp_ps_mask(_mm512_abs_ps(b->q), limit, _CMP_GT_OQ));
    const uint32_t at =
        both(_mm512_cmp_ps_mask(size_a, largest, _CMP_EQ_OQ), _mm512_cmp_ps_mask(size_b, largest, _CMP_EQ_OQ));
    *error = (tsr_int_error){
        .sum_q2 = tree_sum(_mm512_mul_ps(a->q, a->q), _mm512_mul_ps(b->q, b->q)),
        .sum_e2 = tree_sum(_mm512_mul_ps(a->e, a->e), _mm512_mul_ps(b->e, b->e)),
        .sum_qv = tree_sum(_mm512_mul_ps(a->q, a->v), _mm512_mul_ps(b->q, b->v)),
        .max_e = _mm512_cvtss_f32(largest),
        .max_at = (size_t)__builtin_ctz(at),
        .nonzero = (uint64_t)__builtin_popcount(nonzero),
        .flushed = (uint64_t)__builtin_popcount(nonzero & zeros),
        .saturated = (uint64_t)__builtin_popcount(beyond),
    };
}

static inline __m512 load_bf16(const uint16_t *x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x)), 16));
}

static inline __m512 load_f32(const float *x)
{
    return _mm512_loadu_ps(x);
}

#define ERROR(name, type)                                                                                              \
    void tsr_error_e2m1_##name##_avx512(const type *x, size_t n, float t, const uint8_t *packed, tsr_int_error *error) \
    {                                                                                                                  \
        if (n != 16 && n != 32) {                                                                                      \
            tsr_error_e2m1_##name##_ref(x, n, t, packed, error);                                                       \
            return;                                                                                                    \
        }                                                                                                              \
        const float k = TSR_INT_BOOST(t);                                                                              \
        const __m512 boost = _mm512_set1_ps(k), inverse = _mm512_set1_ps(1 / (t * k));                                 \
        const part a = part_of(load_##name(x), packed, boost, inverse);                                                \
        const __m512 none = _mm512_setzero_ps();                                                                       \
        const part b =                                                                                                 \
            n == 32 ? part_of(load_##name(x + 16), packed + 8, boost, inverse) : (part){none, none, none, none};       \
        sum_up(&a, &b, error);                                                                                         \
    }

ERROR(bf16, uint16_t)
ERROR(f32, float)
