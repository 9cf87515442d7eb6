/* Searches for the best scales with AVX-512, 16 groups at a time. */
#include "kernels/cpu/x86/simd_avx512.h"

enum { LANES = 16 };
#define TSR_BEST(name)     tsr_##name##_avx512
#define f_gather(table, i) _mm512_i32gather_ps((__m512i)(i), table, 4)
#define f_at_most(a, b)    ((vi)_mm512_movm_epi32(_mm512_cmp_ps_mask(a, b, _CMP_LE_OQ)))
#define v_any(x)           (_mm512_test_epi32_mask((__m512i)(x), (__m512i)(x)) != 0)
#include "kernels/cpu/best_groups_body.h"
