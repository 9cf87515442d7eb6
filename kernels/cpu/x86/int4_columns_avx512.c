/* Decodes int4 codes by columns with AVX-512. A lane is a row, so that the scales of a column are one load for any
 * group. Pairs of columns are transposed as dwords, 16 x 16. */
#include <immintrin.h>

#define TSR_INT4(name) tsr_##name##_avx512
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/int4_columns_body.h"

enum { TILE_ROWS = 16, TILE_COLS = 32, PAIRS = TILE_COLS / 2 };

/* Returns the code at bit `at` of each word, plus TSR_INT4_RAISE: with an exponent of 7, bit 16 has the value 1. */
ALWAYS_INLINE __m512 raised(__m512i words, int at)
{
    const __m512i moved =
        at < 16 ? _mm512_slli_epi32(words, (unsigned)(16 - at)) : _mm512_srli_epi32(words, (unsigned)(at - 16));
    const __m512i raise = _mm512_castps_si512(_mm512_set1_ps(TSR_INT4_RAISE));
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(moved, _mm512_set1_epi32(0xF0000), raise, 0xEA)); /* a & b | c */
}

/* Returns FP32 of column c, whose codes begin at bit `at`. */
ALWAYS_INLINE __m512i value(const tsr_int4_columns *x, size_t c, __m512i words, int at)
{
    const size_t g = x->group[c] * x->ld_groups;
    return _mm512_castps_si512(
        _mm512_fmadd_ps(raised(words, at), _mm512_loadu_ps(x->scale + g), _mm512_loadu_ps(x->offset + g)));
}

typedef __m512i vec;
#define OP(name) _mm512_##name
#include "kernels/cpu/x86/int4_columns_pairs.h"

/* Returns BF16 of columns c and c + 1, side by side. Rounds up if the discarded bits are above one half, or equal one
 * half and the kept bits are odd. */
ALWAYS_INLINE __m512i decode_pair(const tsr_int4_columns *x, size_t c, __m512i words, int at)
{
    const __m512i even = value(x, c, words, at), odd = value(x, c + 1, words, at + 4);
    const __m512i upper = _mm512_set1_epi32((int)0xFFFF0000);
    /* even >> 16 | (odd & upper), and upper ? odd << 16 : even */
    const __m512i stays = _mm512_ternarylogic_epi32(_mm512_srli_epi32(even, 16), odd, upper, 0xF8);
    const __m512i cut = _mm512_ternarylogic_epi32(upper, _mm512_slli_epi32(odd, 16), even, 0xCA);
    const __m512i decides = _mm512_ternarylogic_epi32(cut, stays, _mm512_set1_epi16(1), 0xF8); /* a | (b & c) */
    const __mmask32 up = _mm512_cmpgt_epu16_mask(decides, _mm512_set1_epi16((short)0x8000));
    return _mm512_mask_sub_epi16(stays, up, stays, _mm512_set1_epi16(-1));
}

ALWAYS_INLINE void decode_tile(const tsr_int4_columns *x, uint16_t *y, size_t ld)
{
    vec a[PAIRS];
#pragma GCC unroll 4 /* otherwise the pairs are not kept in registers */
    for (size_t w = 0; w < 4; w++) {
        const __m512i words = _mm512_loadu_si512(x->words + w * x->ld_words);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++)
            a[4 * w + i] = decode_pair(x, 8 * w + 2 * i, words, 8 * (int)i);
    }
    transpose_pairs(a); /* quarter q of a[i + j] is four pairs of row 4 * q + j */
    for (size_t j = 0; j < 4; j++) {
        const __m512i left_even = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88);
        const __m512i left_odd = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xDD);
        const __m512i right_even = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
        const __m512i right_odd = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xDD);
        _mm512_storeu_si512(y + j * ld, _mm512_shuffle_i32x4(left_even, right_even, 0x88));
        _mm512_storeu_si512(y + (4 + j) * ld, _mm512_shuffle_i32x4(left_odd, right_odd, 0x88));
        _mm512_storeu_si512(y + (8 + j) * ld, _mm512_shuffle_i32x4(left_even, right_even, 0xDD));
        _mm512_storeu_si512(y + (12 + j) * ld, _mm512_shuffle_i32x4(left_odd, right_odd, 0xDD));
    }
}

#include "kernels/cpu/x86/int4_columns_tiles.h"
