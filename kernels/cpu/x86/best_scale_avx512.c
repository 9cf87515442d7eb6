/* Searches for the best scales with AVX-512, 16 groups at a time. */
#include "kernels/cpu/x86/simd_avx512.h"

enum { LANES = 16 };
#define TSR_BEST(name)     tsr_##name##_avx512
#define f_gather(table, i) _mm512_i32gather_ps((__m512i)(i), table, 4)
#define f_at_most(a, b)    ((vi)_mm512_movm_epi32(_mm512_cmp_ps_mask(a, b, _CMP_LE_OQ)))
#define v_any(x)           (_mm512_test_epi32_mask((__m512i)(x), (__m512i)(x)) != 0)
#include "kernels/cpu/best_groups_body.h"

#define f_add(a, b)         _mm512_add_ps(a, b)
#define f_div(a, b)         _mm512_div_ps(a, b)
#define f_store(p, x)       _mm512_storeu_ps(p, x)
#define f_round(x)          _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define f_size(x)           _mm512_abs_ps(x)
#define f_sum(x)            _mm512_reduce_add_ps(x)
#define f_less(a, b)        ((unsigned)_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ))
#define f_keep(to, x, mask) _mm512_storeu_ps(to, _mm512_maskz_compress_ps((__mmask16)(mask), x))

enum { HALVES = 2 };
typedef __m512d vd;
#define d_set1(x)        _mm512_set1_pd(x)
#define d_sum(x)         _mm512_reduce_add_pd(x)
#define f_widen(x, half) _mm512_cvtps_pd((half) == 0 ? _mm512_castps512_ps256(x) : _mm512_extractf32x8_ps(x, 1))
#include "kernels/cpu/best_int4_body.h"

#define f_e4m3(q) rounded_to_code(q, true)
#include "kernels/cpu/best_fp8_body.h"
