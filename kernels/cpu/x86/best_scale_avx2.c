/* Searches for the best scales with AVX2, 8 groups at a time. */
#include "kernels/cpu/x86/simd_avx2.h"

enum { LANES = 8 };
#define TSR_BEST(name)     tsr_##name##_avx2
#define f_gather(table, i) _mm256_i32gather_ps(table, (__m256i)(i), 4)
#define f_at_most(a, b)    ((vi)_mm256_cmp_ps(a, b, _CMP_LE_OQ))
#define v_any(x)           (!_mm256_testz_si256((__m256i)(x), (__m256i)(x)))
#include "kernels/cpu/best_groups_body.h"

#define f_add(a, b)               _mm256_add_ps(a, b)
#define f_store(p, x)             _mm256_storeu_ps(p, x)
#define f_round(x)                _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define f_where_negative(x, a, b) _mm256_blendv_ps(b, a, x)

static inline float f_sum(vf x)
{
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#include "kernels/cpu/best_int4_body.h"

#define f_div(a, b) _mm256_div_ps(a, b)
#define f_e4m3(q)   rounded_to_code(q, true)
#include "kernels/cpu/best_fp8_body.h"
