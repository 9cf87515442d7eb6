/* Decodes int4 codes by columns with AVX2. A lane is a row, so that the scales of a column are one load for any group.
 * Pairs of columns are transposed as dwords, 8 x 8. */
#include <immintrin.h>

#define TSR_INT4(name) tsr_##name##_avx2
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/int4_columns_body.h"

enum { TILE_ROWS = 16, TILE_COLS = 32, ROWS = 8, COLS = 16, PAIRS = COLS / 2 };

/* Returns the code at bit `at` of each word, plus TSR_INT4_RAISE: with an exponent of 7, bit 16 has the value 1. */
ALWAYS_INLINE __m256 raised(__m256i words, int at)
{
    const __m256i moved = at < 16 ? _mm256_slli_epi32(words, 16 - at) : _mm256_srli_epi32(words, at - 16);
    return _mm256_or_ps(_mm256_castsi256_ps(_mm256_and_si256(moved, _mm256_set1_epi32(0xF0000))),
                        _mm256_set1_ps(TSR_INT4_RAISE));
}

/* Decodes column c, whose codes begin at bit `at`. The BF16 is in the upper half of each lane. */
ALWAYS_INLINE __m256i value(const tsr_int4_columns *x, size_t c, __m256i words, int at)
{
    const size_t g = x->group[c] * x->ld_groups;
    const __m256i bits = _mm256_castps_si256(
        _mm256_fmadd_ps(raised(words, at), _mm256_loadu_ps(x->scale + g), _mm256_loadu_ps(x->offset + g)));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
}

typedef __m256i vec;
#define OP(name) _mm256_##name
#include "kernels/cpu/x86/int4_columns_pairs.h"

/* Returns BF16 of columns c and c + 1, side by side. */
ALWAYS_INLINE __m256i decode_pair(const tsr_int4_columns *x, size_t c, __m256i words, int at)
{
    const __m256i even = _mm256_srli_epi32(value(x, c, words, at), 16);
    return _mm256_blend_epi16(even, value(x, c + 1, words, at + 4), 0xAA);
}

/* Decodes ROWS x COLS from [row, col] on. */
ALWAYS_INLINE void decode_part(const tsr_int4_columns *tile, size_t row, size_t col, uint16_t *y, size_t ld)
{
    const tsr_int4_columns part = {
        .group = tile->group, .scale = tile->scale + row, .offset = tile->offset + row, .ld_groups = tile->ld_groups};
    vec a[PAIRS];
#pragma GCC unroll 2 /* otherwise the pairs are not kept in registers */
    for (size_t w = 0; w < 2; w++) {
        const uint32_t *const from = tile->words + (col / 8 + w) * tile->ld_words + row;
        const __m256i words = _mm256_loadu_si256((const __m256i *)from);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++)
            a[4 * w + i] = decode_pair(&part, col + 8 * w + 2 * i, words, 8 * (int)i);
    }
    transpose_pairs(a); /* half h of a[i + j] is four pairs of row 4 * h + j */
    for (size_t j = 0; j < 4; j++) {
        uint16_t *const upper = y + (row + j) * ld + col, *const lower = upper + 4 * ld;
        _mm256_storeu_si256((__m256i *)upper, _mm256_permute2x128_si256(a[j], a[4 + j], 0x20));
        _mm256_storeu_si256((__m256i *)lower, _mm256_permute2x128_si256(a[j], a[4 + j], 0x31));
    }
}

/* Decodes whole cache lines of words to whole lines of results. */
ALWAYS_INLINE void decode_tile(const tsr_int4_columns *x, uint16_t *y, size_t ld)
{
    for (size_t row = 0; row < TILE_ROWS; row += ROWS) {
        for (size_t col = 0; col < TILE_COLS; col += COLS)
            decode_part(x, row, col, y, ld);
    }
}

#include "kernels/cpu/x86/int4_columns_tiles.h"
