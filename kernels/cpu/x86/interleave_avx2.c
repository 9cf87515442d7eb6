/* Interleaving in AVX2: defines the operations of interleave_simd.h with 32 bytes. */
#include "kernels/cpu/always_inline.h"

#include <immintrin.h>
#include <stdint.h>

typedef __m256i vec;
typedef __m128i half;
enum { LANES = 2 };

ALWAYS_INLINE vec v_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}

ALWAYS_INLINE void v_store(uint8_t *p, vec x)
{
    _mm256_storeu_si256((void *)p, x);
}

ALWAYS_INLINE half h_load(const uint8_t *p)
{
    return _mm_loadu_si128((const void *)p);
}

ALWAYS_INLINE void h_store(uint8_t *p, half h)
{
    _mm_storeu_si128((void *)p, h);
}

ALWAYS_INLINE vec v_lanes(const uint8_t *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)p));
}

ALWAYS_INLINE vec v_set1(char byte)
{
    return _mm256_set1_epi8(byte);
}

ALWAYS_INLINE vec v_and(vec a, vec b)
{
    return _mm256_and_si256(a, b);
}

ALWAYS_INLINE vec v_or(vec a, vec b)
{
    return _mm256_or_si256(a, b);
}

ALWAYS_INLINE vec v_xor(vec a, vec b)
{
    return _mm256_xor_si256(a, b);
}

ALWAYS_INLINE vec v_sub(vec a, vec b)
{
    return _mm256_sub_epi8(a, b);
}

ALWAYS_INLINE vec v_select(vec mask, vec a, vec b)
{
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}

ALWAYS_INLINE vec v_left4(vec x)
{
    return _mm256_slli_epi16(x, 4);
}

ALWAYS_INLINE vec v_right4(vec x)
{
    return _mm256_srli_epi16(x, 4);
}

ALWAYS_INLINE vec v_shuffle(vec x, vec table)
{
    return _mm256_shuffle_epi8(x, table);
}

ALWAYS_INLINE vec v_pairs(vec x)
{
    return _mm256_maddubs_epi16(x, _mm256_set1_epi16(0x1001));
}

ALWAYS_INLINE vec v_pack(vec a, vec b)
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), _MM_SHUFFLE(3, 1, 2, 0));
}

ALWAYS_INLINE vec v_widen(half h)
{
    return _mm256_cvtepu8_epi16(h);
}

ALWAYS_INLINE half v_lower(vec x)
{
    return _mm256_castsi256_si128(x);
}

ALWAYS_INLINE half v_upper(vec x)
{
    return _mm256_extracti128_si256(x, 1);
}

ALWAYS_INLINE vec v_zip_lo(vec a, vec b)
{
    return _mm256_unpacklo_epi8(a, b);
}

ALWAYS_INLINE vec v_zip_hi(vec a, vec b)
{
    return _mm256_unpackhi_epi8(a, b);
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
