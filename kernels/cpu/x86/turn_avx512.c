/* Turning nibbles with AVX-512: 8 columns of two blocks of 8 rows, the one in the lower halves of the registers and the
 * other in the upper ones. */
#include "kernels/cpu/variants.h"
#include "kernels/cpu/x86/always_inline.h"

#include <immintrin.h>

enum { TILE = 8, AHEAD = 96 }; /* rows that are prefetched: they lie too far apart for the hardware to do it in time */

/* As turn_avx2.c has it. */
ALWAYS_INLINE void exchange(__m512i *a, __m512i *b, unsigned shift, uint32_t low)
{
    /* (a >> shift ^ b) & low */
    const __m512i moved =
        _mm512_ternarylogic_epi32(_mm512_srli_epi32(*a, shift), *b, _mm512_set1_epi32((int)low), 0x28);
    *b = _mm512_xor_si512(*b, moved);
    *a = _mm512_xor_si512(*a, _mm512_slli_epi32(moved, shift));
}

ALWAYS_INLINE void turn_two_blocks(const uint32_t *x, size_t ld_x, uint32_t *y, size_t ld_y)
{
    __m512i v[TILE];
    for (size_t r = 0; r < TILE; r++) {
        const __m256i first = _mm256_loadu_si256((const __m256i *)(x + r * ld_x));
        const __m256i second = _mm256_loadu_si256((const __m256i *)(x + (r + TILE) * ld_x));
        v[r] = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
    }
    for (size_t r = 0; r < 4; r++)
        exchange(&v[r], &v[r + 4], 16, 0x0000FFFF);
    for (size_t r = 0; r < 2; r++) {
        exchange(&v[r], &v[r + 2], 8, 0x00FF00FF);
        exchange(&v[r + 4], &v[r + 6], 8, 0x00FF00FF);
    }
    for (size_t r = 0; r < TILE; r += 2)
        exchange(&v[r], &v[r + 1], 4, 0x0F0F0F0F);
    for (size_t r = 0; r < TILE; r++) {
        _mm256_storeu_si256((__m256i *)(y + r * ld_y), _mm512_castsi512_si256(v[r]));
        _mm256_storeu_si256((__m256i *)(y + (r + TILE) * ld_y), _mm512_extracti64x4_epi64(v[r], 1));
    }
}

void tsr_turn_nibbles_avx512(const uint32_t *x, size_t rows, size_t cols, size_t ld_x, uint32_t *y)
{
    const size_t twos = cols % TILE == 0 ? rows - rows % (2 * TILE) : 0;
    for (size_t row = 0; row < twos; row += 2 * TILE) {
        for (size_t r = row + AHEAD; r < row + AHEAD + 2 * TILE; r++) {
            for (size_t c = 0; c < cols; c += 16)
                _mm_prefetch((const char *)(x + r * ld_x + c), _MM_HINT_T0);
        }
        for (size_t c = 0; c < cols; c += TILE)
            turn_two_blocks(x + row * ld_x + c, ld_x, y + row * cols + c, cols);
    }
    tsr_turn_nibbles_avx2(x + twos * ld_x, rows - twos, cols, ld_x, y + twos * cols);
}
