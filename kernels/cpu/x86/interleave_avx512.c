/* Interleaving in AVX-512: defines the operations of interleave_simd.h with 64 bytes. */
#include "kernels/cpu/x86/simd_avx512.h"

typedef __m256i half;
enum { LANES = 4 };

#define h_load(p)     _mm256_loadu_si256((const void *)(p))
#define h_store(p, h) _mm256_storeu_si256((void *)(p), h)
#define v_widen(h)    _mm512_cvtepu8_epi16(h)
#define v_lower(x)    _mm512_castsi512_si256(x)
#define v_upper(x)    _mm512_extracti64x4_epi64(x, 1)
#define v_pairs(x)    OP(maddubs_epi16)(x, OP(set1_epi16)(0x1001))

ALWAYS_INLINE vec v_select(vec mask, vec a, vec b)
{
    return _mm512_ternarylogic_epi64(mask, a, b, 0xCA);
}

ALWAYS_INLINE void v_store_lanes(uint8_t *p, size_t step, vec x)
{
    _mm_storeu_si128((void *)p, _mm512_castsi512_si128(x));
    _mm_storeu_si128((void *)(p + step), _mm512_extracti32x4_epi32(x, 1));
    _mm_storeu_si128((void *)(p + 2 * step), _mm512_extracti32x4_epi32(x, 2));
    _mm_storeu_si128((void *)(p + 3 * step), _mm512_extracti32x4_epi32(x, 3));
}

ALWAYS_INLINE vec v_load_lanes(const uint8_t *p, size_t step)
{
    const __m128i *const at[4] = {(const void *)p, (const void *)(p + step), (const void *)(p + 2 * step),
                                  (const void *)(p + 3 * step)};
    const vec one = _mm512_castsi128_si512(_mm_loadu_si128(at[0]));
    const vec two = _mm512_mask_broadcast_i32x4(one, 0x00F0, _mm_loadu_si128(at[1]));
    const vec three = _mm512_mask_broadcast_i32x4(two, 0x0F00, _mm_loadu_si128(at[2]));
    return _mm512_mask_broadcast_i32x4(three, 0xF000, _mm_loadu_si128(at[3]));
}

#include "kernels/cpu/x86/interleave_simd.h"

void tsr_interleave_avx512(const tsr_interleave_args *args, const uint8_t *codes, uint8_t *out)
{
    interleave(args, codes, out);
}

void tsr_deinterleave_avx512(const tsr_interleave_args *args, const uint8_t *in, uint8_t *codes)
{
    deinterleave(args, in, codes);
}
