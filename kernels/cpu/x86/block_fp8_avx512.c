/* Block FP8 in AVX-512: BF16 as e4m3_bands_body.h explains. FP32, and BF16 that this method does not support, by
 * division, 32 columns at a time, the last ones under a mask. */
#include "kernels/cpu/block_fp8.h"

#include "kernels/cpu/variants.h"
#include "kernels/cpu/x86/e4m3_avx512.h"
#include "kernels/cpu/x86/simd_avx512.h"

ALWAYS_INLINE void encode_row_by_division(const char *x, size_t cols, size_t x_bytes, load32_fn *load, float scale,
                                          uint8_t *codes)
{
    const __m512 divisor = _mm512_set1_ps(scale);
    size_t col = 0;
    for (; col + 32 <= cols; col += 32)
        _mm256_storeu_si256((void *)(codes + col), encode32(load(x + col * x_bytes, ~0u), divisor));
    if (col < cols) {
        const __mmask32 tail = first_lanes(cols - col);
        _mm256_mask_storeu_epi8(codes + col, tail, encode32(load(x + col * x_bytes, tail), divisor));
    }
}

static __attribute__((noinline)) void encode_by_division(const uint16_t *x, size_t n, float scale, uint8_t *codes)
{
    encode_row_by_division((const char *)x, n, sizeof *x, load32_bf16, scale, codes);
}

#define TSR_BLOCK_FP8(name) tsr_##name##_avx512
#include "kernels/cpu/e4m3_look_up_body.h"
/* uses the operations, the table and encode_by_division from above */
#include "kernels/cpu/e4m3_bands_body.h"
/* uses the functions of bands */
#include "kernels/cpu/block_fp8_body.h"

ALWAYS_INLINE __m512i amax_row_f32(__m512i amax, const void *row, size_t cols)
{
    const float *x = row;
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    for (; cols >= 16; cols -= 16, x += 16)
        amax = _mm512_max_epu32(amax, _mm512_and_si512(magnitude, _mm512_loadu_si512(x)));
    const __mmask16 tail = (__mmask16)first_lanes(cols);
    return _mm512_max_epu32(amax, _mm512_and_si512(magnitude, _mm512_maskz_loadu_epi32(tail, x)));
}

void tsr_amax_f32_avx512(const float *x, size_t rows, size_t cols, size_t ld, size_t block_cols, uint32_t *amax)
{
    for (size_t first = 0; first < cols; first += block_cols) {
        const size_t width = block_width(cols, first, block_cols);
        __m512i largest = _mm512_setzero_si512();
        for (size_t row = 0; row < rows; row++)
            largest = amax_row_f32(largest, x + row * ld + first, width);
        *amax++ = _mm512_reduce_max_epu32(largest);
    }
}

void tsr_encode_e4m3_f32_avx512(const float *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                const float *scales, uint8_t *codes, size_t ld_codes)
{
    for (size_t row = 0; row < rows; row++, x += ld, codes += ld_codes) {
        for (size_t col = 0, i = 0; col < cols; col += block_cols, i++)
            encode_row_by_division((const char *)(x + col), block_width(cols, col, block_cols), sizeof *x, load32_f32,
                                   scales[i], codes + col);
    }
}

void tsr_widen_f16_avx512(const uint16_t *x, size_t n, float *out)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(x + i))));
    }
    if (i < n) {
        const __mmask16 tail = (__mmask16)first_lanes(n - i);
        _mm512_mask_storeu_ps(out + i, tail, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(tail, x + i)));
    }
}
