/* Transposes nibbles with AVX-512: 16 columns of 8 rows, one cache line per row. */
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

#include <immintrin.h>

typedef __m512i vec;
#include "kernels/cpu/x86/transpose_body.h"

enum { LINE = 16, AHEAD = 96 }; /* rows that are prefetched: they are too far apart for the hardware prefetcher */

/* Returns the bits of x where `low` is set, those of y elsewhere. */
ALWAYS_INLINE __m512i choose(__m512i low, __m512i x, __m512i y)
{
    return _mm512_ternarylogic_epi32(low, x, y, 0xCA);
}

/* Uses two shifts that do not depend on each other. */
void exchange(vec *a, vec *b, unsigned shift, uint32_t low_bits)
{
    const __m512i low = _mm512_set1_epi32((int)low_bits);
    const __m512i upper = _mm512_srli_epi32(*a, shift), lower = _mm512_slli_epi32(*b, shift);
    *a = choose(low, *a, lower);
    *b = choose(low, upper, *b);
}

ALWAYS_INLINE void turn_block(const uint32_t *x, size_t ld_x, uint32_t *y, size_t ld_y)
{
    __m512i v[TILE];
    for (size_t r = 0; r < TILE; r++) {
        _mm_prefetch((const char *)(x + (r + AHEAD) * ld_x), _MM_HINT_T0);
        v[r] = _mm512_loadu_si512(x + r * ld_x);
    }
    transpose_words(v);
    for (size_t r = 0; r < TILE; r++)
        _mm512_storeu_si512(y + r * ld_y, v[r]);
}

void tsr_transpose_nibbles_avx512(const uint32_t *x, size_t rows, size_t cols, size_t ld_x, uint32_t *y)
{
    if (cols % LINE != 0) {
        tsr_transpose_nibbles_avx2(x, rows, cols, ld_x, y);
        return;
    }
    for (size_t row = 0; row < rows; row += TILE) {
        for (size_t c = 0; c < cols; c += LINE)
            turn_block(x + row * ld_x + c, ld_x, y + row * cols + c, cols);
    }
}
