/* Interleaving in AVX-512: defines the operations of interleave_simd.h with 64 bytes. */
#include "kernels/cpu/always_inline.h"

#include <immintrin.h>
#include <stdint.h>

typedef __m512i vec;
typedef __m256i half;
enum { LANES = 4 };

ALWAYS_INLINE vec v_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

ALWAYS_INLINE void v_store(uint8_t *p, vec x)
{
    _mm512_storeu_si512(p, x);
}

ALWAYS_INLINE half h_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}

ALWAYS_INLINE void h_store(uint8_t *p, half h)
{
    _mm256_storeu_si256((void *)p, h);
}

ALWAYS_INLINE vec v_lanes(const uint8_t *p)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)p));
}

ALWAYS_INLINE vec v_set1(char byte)
{
    return _mm512_set1_epi8(byte);
}

ALWAYS_INLINE vec v_and(vec a, vec b)
{
    return _mm512_and_si512(a, b);
}

ALWAYS_INLINE vec v_or(vec a, vec b)
{
    return _mm512_or_si512(a, b);
}

ALWAYS_INLINE vec v_xor(vec a, vec b)
{
    return _mm512_xor_si512(a, b);
}

ALWAYS_INLINE vec v_sub(vec a, vec b)
{
    return _mm512_sub_epi8(a, b);
}

ALWAYS_INLINE vec v_select(vec mask, vec a, vec b)
{
    return _mm512_ternarylogic_epi64(mask, a, b, 0xCA);
}

ALWAYS_INLINE vec v_left4(vec x)
{
    return _mm512_slli_epi16(x, 4);
}

ALWAYS_INLINE vec v_right4(vec x)
{
    return _mm512_srli_epi16(x, 4);
}

ALWAYS_INLINE vec v_shuffle(vec x, vec table)
{
    return _mm512_shuffle_epi8(x, table);
}

ALWAYS_INLINE vec v_pairs(vec x)
{
    return _mm512_maddubs_epi16(x, _mm512_set1_epi16(0x1001));
}

ALWAYS_INLINE vec v_pack(vec a, vec b)
{
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packus_epi16(a, b));
}

ALWAYS_INLINE vec v_widen(half h)
{
    return _mm512_cvtepu8_epi16(h);
}

ALWAYS_INLINE half v_lower(vec x)
{
    return _mm512_castsi512_si256(x);
}

ALWAYS_INLINE half v_upper(vec x)
{
    return _mm512_extracti64x4_epi64(x, 1);
}

ALWAYS_INLINE vec v_zip_lo(vec a, vec b)
{
    return _mm512_unpacklo_epi8(a, b);
}

ALWAYS_INLINE vec v_zip_hi(vec a, vec b)
{
    return _mm512_unpackhi_epi8(a, b);
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
