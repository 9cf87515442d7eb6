/* Searches for the best scales with AVX2, 8 groups at a time. */
#include "kernels/cpu/x86/simd_avx2.h"

enum { LANES = 8 };
#define TSR_BEST(name)     tsr_##name##_avx2
#define f_gather(table, i) _mm256_i32gather_ps(table, (__m256i)(i), 4)
#define f_at_most(a, b)    ((vi)_mm256_cmp_ps(a, b, _CMP_LE_OQ))
#define v_any(x)           (!_mm256_testz_si256((__m256i)(x), (__m256i)(x)))
#include "kernels/cpu/best_groups_body.h"
