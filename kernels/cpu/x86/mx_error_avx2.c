/* What E2M1 codes cost, with AVX2: 16 or 32 elements of a group at once. The sums are the definition's: FP32 products,
 * added in FP64 as a tree. */
#include "kernels/cpu/variants.h"

#include <immintrin.h>
#include <string.h>

enum { PARTS = 4, WIDTH = 8 };

/* 8 lanes. */
typedef struct part {
    __m256 x, q, v, e;
} part;

static inline part part_of(__m256 x, const uint8_t *packed, __m256 boost, __m256 inverse)
{
    const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    uint32_t four;
    memcpy(&four, packed, sizeof four);
    const __m256i byte = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128((int)four));
    const __m256i codes = _mm256_or_si256(byte, _mm256_slli_epi64(byte, 28)); /* low 4 bits of each lane */
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28), _mm256_set1_epi32(INT32_MIN));
    const __m256 v = _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, codes), _mm256_castsi256_ps(sign));
    const __m256 q = _mm256_mul_ps(_mm256_mul_ps(x, boost), inverse);
    return (part){x, q, v, _mm256_sub_ps(q, v)};
}

static inline __m256d low_half(__m256 x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}

static inline __m256d high_half(__m256 x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}

/* Lanes l and l + 16, then l and l + 8, ... l + 1. */
static inline double tree_sum(const __m256 x[PARTS])
{
    const __m256d low =
        _mm256_add_pd(_mm256_add_pd(low_half(x[0]), low_half(x[2])), _mm256_add_pd(low_half(x[1]), low_half(x[3])));
    const __m256d high =
        _mm256_add_pd(_mm256_add_pd(high_half(x[0]), high_half(x[2])), _mm256_add_pd(high_half(x[1]), high_half(x[3])));
    const __m256d four = _mm256_add_pd(low, high);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

static inline __m256 magnitude(__m256 x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

static inline float largest_of(__m256 x)
{
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

static inline void sum_up(const part p[PARTS], tsr_int_error *error)
{
    const __m256 zero = _mm256_setzero_ps(), limit = _mm256_set1_ps(7);
    __m256 q2[PARTS], e2[PARTS], qv[PARTS], largest = zero;
    uint32_t nonzero = 0, zeros = 0, beyond = 0, at = 0;
    for (unsigned i = 0; i < PARTS; i++) {
        q2[i] = _mm256_mul_ps(p[i].q, p[i].q);
        e2[i] = _mm256_mul_ps(p[i].e, p[i].e);
        qv[i] = _mm256_mul_ps(p[i].q, p[i].v);
        largest = _mm256_max_ps(largest, magnitude(p[i].e));
        nonzero |= (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(p[i].x, zero, _CMP_NEQ_UQ)) << WIDTH * i;
        zeros |= (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(p[i].v, zero, _CMP_EQ_OQ)) << WIDTH * i;
        beyond |= (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(magnitude(p[i].q), limit, _CMP_GT_OQ)) << WIDTH * i;
    }
    const float most = largest_of(largest);
    for (unsigned i = 0; i < PARTS; i++) {
        const __m256 here = _mm256_cmp_ps(magnitude(p[i].e), _mm256_set1_ps(most), _CMP_EQ_OQ);
        at |= (uint32_t)_mm256_movemask_ps(here) << WIDTH * i;
    }
    *error = (tsr_int_error){
        .sum_q2 = tree_sum(q2),
        .sum_e2 = tree_sum(e2),
        .sum_qv = tree_sum(qv),
        .max_e = most,
        .max_at = (size_t)__builtin_ctz(at),
        .nonzero = (uint64_t)__builtin_popcount(nonzero),
        .flushed = (uint64_t)__builtin_popcount(nonzero & zeros),
        .saturated = (uint64_t)__builtin_popcount(beyond),
    };
}

static inline __m256 load_bf16(const uint16_t *x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)), 16));
}

static inline __m256 load_f32(const float *x)
{
    return _mm256_loadu_ps(x);
}

/* A group of 16 is one of 32 whose second half is zeros. */
#define ERROR(name, type)                                                                                            \
    void tsr_error_e2m1_##name##_avx2(const type *x, size_t n, float t, const uint8_t *packed, tsr_int_error *error) \
    {                                                                                                                \
        if (n != 16 && n != 32) {                                                                                    \
            tsr_error_e2m1_##name##_ref(x, n, t, packed, error);                                                     \
            return;                                                                                                  \
        }                                                                                                            \
        const float k = TSR_INT_BOOST(t);                                                                            \
        const __m256 boost = _mm256_set1_ps(k), inverse = _mm256_set1_ps(1 / (t * k));                               \
        part p[PARTS] = {0};                                                                                         \
        for (size_t i = 0; i < n / WIDTH; i++)                                                                       \
            p[i] = part_of(load_##name(x + WIDTH * i), packed + WIDTH / 2 * i, boost, inverse);                      \
        sum_up(p, error);                                                                                            \
    }

ERROR(bf16, uint16_t)
ERROR(f32, float)
