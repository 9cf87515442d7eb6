/* Transposes matrices with AVX2, in tiles of 8 x 8. */
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

#include <immintrin.h>
#include <stdbool.h>

typedef __m256i vec;
#include "kernels/cpu/x86/transpose_body.h"

enum { AHEAD = 96 }; /* rows that are prefetched: they are too far apart for the hardware prefetcher */

/* ---- 16 bits ---- */

ALWAYS_INLINE void turn_tile16(const uint16_t *x, size_t ld_x, uint16_t *y, size_t ld_y)
{
    __m128i a[TILE], b[TILE];
    for (size_t r = 0; r < TILE; r++)
        a[r] = _mm_loadu_si128((const __m128i *)(x + r * ld_x));
    for (size_t r = 0; r < 4; r++) { /* row r beside row r + 4, three times */
        b[2 * r] = _mm_unpacklo_epi16(a[r], a[r + 4]);
        b[2 * r + 1] = _mm_unpackhi_epi16(a[r], a[r + 4]);
    }
    for (size_t r = 0; r < 4; r++) {
        a[2 * r] = _mm_unpacklo_epi16(b[r], b[r + 4]);
        a[2 * r + 1] = _mm_unpackhi_epi16(b[r], b[r + 4]);
    }
    for (size_t r = 0; r < 4; r++) {
        _mm_storeu_si128((__m128i *)(y + 2 * r * ld_y), _mm_unpacklo_epi16(a[r], a[r + 4]));
        _mm_storeu_si128((__m128i *)(y + (2 * r + 1) * ld_y), _mm_unpackhi_epi16(a[r], a[r + 4]));
    }
}

/* Processes tiles column by column, so that whole cache lines are written. */
void tsr_transpose16_avx2(const uint16_t *x, size_t rows, size_t cols, size_t ld_x, uint16_t *y, size_t ld_y)
{
    const size_t tiled_rows = rows / TILE * TILE, tiled_cols = cols / TILE * TILE;
    for (size_t c = 0; c < tiled_cols; c += TILE) {
        for (size_t r = 0; r < tiled_rows; r += TILE)
            turn_tile16(x + r * ld_x + c, ld_x, y + c * ld_y + r, ld_y);
    }
    tsr_transpose16_ref(x + tiled_cols, tiled_rows, cols - tiled_cols, ld_x, y + tiled_cols * ld_y, ld_y);
    tsr_transpose16_ref(x + tiled_rows * ld_x, rows - tiled_rows, cols, ld_x, y + tiled_rows, ld_y);
}

/* ---- 32 bits ---- */

ALWAYS_INLINE void turn_tile32(const uint32_t *x, size_t ld_x, uint32_t *y, size_t ld_y)
{
    __m256 a[TILE], b[TILE];
    for (size_t r = 0; r < 4; r++) { /* columns 0-3 of rows r and r + 4, and columns 4-7 */
        const float *const upper = (const float *)(const void *)(x + r * ld_x);
        const float *const lower = (const float *)(const void *)(x + (r + 4) * ld_x);
        a[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(upper)), _mm_loadu_ps(lower), 1);
        a[r + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(upper + 4)), _mm_loadu_ps(lower + 4), 1);
    }
    for (size_t r = 0; r < TILE; r += 2) {
        b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
        b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
    }
    for (size_t half = 0; half < TILE; half += 4) {
        float *const to = (float *)(void *)(y + half * ld_y);
        _mm256_storeu_ps(to, _mm256_shuffle_ps(b[half], b[half + 2], 0x44));
        _mm256_storeu_ps(to + ld_y, _mm256_shuffle_ps(b[half], b[half + 2], 0xEE));
        _mm256_storeu_ps(to + 2 * ld_y, _mm256_shuffle_ps(b[half + 1], b[half + 3], 0x44));
        _mm256_storeu_ps(to + 3 * ld_y, _mm256_shuffle_ps(b[half + 1], b[half + 3], 0xEE));
    }
}

void tsr_transpose32_avx2(const uint32_t *x, size_t rows, size_t cols, size_t ld_x, uint32_t *y, size_t ld_y)
{
    const size_t tiled_rows = rows / TILE * TILE, tiled_cols = cols / TILE * TILE;
    for (size_t r = 0; r < tiled_rows; r += TILE) {
        for (size_t line = 0; line < TILE; line++)
            for (size_t c = 0; c < tiled_cols; c += 16)
                _mm_prefetch((const char *)(x + (r + line + TILE) * ld_x + c), _MM_HINT_T0);
        for (size_t c = 0; c < tiled_cols; c += TILE)
            turn_tile32(x + r * ld_x + c, ld_x, y + c * ld_y + r, ld_y);
    }
    tsr_transpose32_ref(x + tiled_cols, tiled_rows, cols - tiled_cols, ld_x, y + tiled_cols * ld_y, ld_y);
    tsr_transpose32_ref(x + tiled_rows * ld_x, rows - tiled_rows, cols, ld_x, y + tiled_rows, ld_y);
}

/* ---- nibbles ---- */

void exchange(vec *a, vec *b, unsigned shift, uint32_t low)
{
    const __m256i differ = _mm256_xor_si256(_mm256_srli_epi32(*a, (int)shift), *b);
    const __m256i moved = _mm256_and_si256(differ, _mm256_set1_epi32((int)low));
    *b = _mm256_xor_si256(*b, moved);
    *a = _mm256_xor_si256(*a, _mm256_slli_epi32(moved, (int)shift));
}

/* Transposes 8 x 8 words of nibbles. Ignores the columns from `cols` on; masked stores take many cycles on some
 * processors, so whole tiles use none. */
ALWAYS_INLINE void turn_block(const uint32_t *x, size_t cols, size_t ld_x, uint32_t *y, size_t ld_y)
{
    const __m256i live = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)cols), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const bool whole = cols == TILE;
    __m256i v[TILE];
    for (size_t r = 0; r < TILE; r++) {
        const int *const from = (const int *)(const void *)(x + r * ld_x);
        _mm_prefetch((const char *)(x + (r + AHEAD) * ld_x), _MM_HINT_T0);
        v[r] = whole ? _mm256_loadu_si256((const __m256i *)from) : _mm256_maskload_epi32(from, live);
    }
    transpose_words(v);
    for (size_t r = 0; r < TILE; r++) {
        if (whole)
            _mm256_storeu_si256((__m256i *)(y + r * ld_y), v[r]);
        else
            _mm256_maskstore_epi32((int *)(void *)(y + r * ld_y), live, v[r]);
    }
}

void tsr_transpose_nibbles_avx2(const uint32_t *x, size_t rows, size_t cols, size_t ld_x, uint32_t *y)
{
    for (size_t row = 0; row < rows; row += TILE) {
        size_t c = 0;
        for (; c + TILE <= cols; c += TILE)
            turn_block(x + row * ld_x + c, TILE, ld_x, y + row * cols + c, cols);
        if (c < cols)
            turn_block(x + row * ld_x + c, cols - c, ld_x, y + row * cols + c, cols);
    }
}
