/* Searches for the best scales with AVX2, 8 groups at a time. */
#include "kernels/cpu/x86/simd_avx2.h"

enum { LANES = 8 };
#define TSR_BEST(name)     tsr_##name##_avx2
#define f_gather(table, i) _mm256_i32gather_ps(table, (__m256i)(i), 4)
#define f_at_most(a, b)    ((vi)_mm256_cmp_ps(a, b, _CMP_LE_OQ))
#define v_any(x)           (!_mm256_testz_si256((__m256i)(x), (__m256i)(x)))
#include "kernels/cpu/best_groups_body.h"

#define f_add(a, b)   _mm256_add_ps(a, b)
#define f_div(a, b)   _mm256_div_ps(a, b)
#define f_store(p, x) _mm256_storeu_ps(p, x)
#define f_round(x)    _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define f_less(a, b)  ((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)))

static inline float f_sum(vf x)
{
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* For each mask, the numbers of its bits, of 3 bits each, the first one lowest. PEXT would compute them, but takes
 * hundreds of cycles on Zen 1 and Zen 2. */
#define BELOW(mask, i) __builtin_popcount((mask) & ((1 << (i)) - 1))
#define KEPT(mask, i)  ((mask) >> (i)&1 ? (uint32_t)(i) << 3 * BELOW(mask, i) : 0)
#define KEPT_8(mask)                                                                                                 \
    (KEPT(mask, 0) | KEPT(mask, 1) | KEPT(mask, 2) | KEPT(mask, 3) | KEPT(mask, 4) | KEPT(mask, 5) | KEPT(mask, 6) | \
     KEPT(mask, 7))
#define MASKS_4(mask)  KEPT_8(mask), KEPT_8((mask) + 1), KEPT_8((mask) + 2), KEPT_8((mask) + 3)
#define MASKS_16(mask) MASKS_4(mask), MASKS_4((mask) + 4), MASKS_4((mask) + 8), MASKS_4((mask) + 12)
#define MASKS_64(mask) MASKS_16(mask), MASKS_16((mask) + 16), MASKS_16((mask) + 32), MASKS_16((mask) + 48)
static const uint32_t kKept[256] = {MASKS_64(0), MASKS_64(64), MASKS_64(128), MASKS_64(192)};

/* Stores the elements of x that a mask selects, and others after them. */
static inline void f_keep(float *to, vf x, unsigned mask)
{
    const __m256i shifts = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21);
    const __m256i from = _mm256_srlv_epi32(_mm256_set1_epi32((int)kKept[mask]), shifts);
    _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(x, from));
}

enum { HALVES = 2 };
typedef __m256d vd;
#define d_set1(x)        _mm256_set1_pd(x)
#define f_widen(x, half) _mm256_cvtps_pd((half) == 0 ? _mm256_castps256_ps128(x) : _mm256_extractf128_ps(x, 1))

static inline double d_sum(vd x)
{
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

#include "kernels/cpu/best_int4_body.h"

#define f_e4m3(q) rounded_to_code(q, true)
#include "kernels/cpu/best_fp8_body.h"
