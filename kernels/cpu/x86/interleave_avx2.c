/* Interleaving in AVX2: defines the operations of interleave_simd.h with 32 bytes. */
#include "kernels/cpu/x86/simd_avx2.h"

typedef __m128i half;
enum { LANES = 2 };

#define h_load(p)     _mm_loadu_si128((const void *)(p))
#define h_store(p, h) _mm_storeu_si128((void *)(p), h)
#define v_widen(h)    _mm256_cvtepu8_epi16(h)
#define v_lower(x)    _mm256_castsi256_si128(x)
#define v_upper(x)    _mm256_extracti128_si256(x, 1)
#define v_pairs(x)    OP(maddubs_epi16)(x, OP(set1_epi16)(0x1001))

ALWAYS_INLINE vec v_select(vec mask, vec a, vec b)
{
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}

ALWAYS_INLINE void v_store_lanes(uint8_t *p, size_t step, vec x)
{
    _mm_storeu_si128((void *)p, _mm256_castsi256_si128(x));
    _mm_storeu_si128((void *)(p + step), _mm256_extracti128_si256(x, 1));
}

ALWAYS_INLINE vec v_load_lanes(const uint8_t *p, size_t step)
{
    return _mm256_loadu2_m128i((const void *)(p + step), (const void *)p);
}

#include "kernels/cpu/x86/interleave_simd.h"

void tsr_interleave_avx2(const tsr_interleave_args *args, const uint8_t *codes, uint8_t *out)
{
    interleave(args, codes, out);
}

void tsr_deinterleave_avx2(const tsr_interleave_args *args, const uint8_t *in, uint8_t *codes)
{
    deinterleave(args, in, codes);
}
