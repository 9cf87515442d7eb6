/* Block FP8 in AVX2, 8 columns at a time; a tail goes through a small buffer. */
#include "kernels/cpu/block_fp8.h"

#include "kernels/cpu/variants.h"
#include "kernels/cpu/x86/simd_avx2.h"

#include <string.h>

/* Loads 8 columns of x. Columns from n on are not read, and are zeros. */
typedef __m256 load8_fn(const void *x, size_t n);

ALWAYS_INLINE __m256 load8_bf16(const void *x, size_t n)
{
    uint16_t buffer[8] = {0};
    if (n < 8) {
        memcpy(buffer, x, n * sizeof *buffer);
        x = buffer;
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(x)), 16));
}

ALWAYS_INLINE __m256 load8_f32(const void *x, size_t n)
{
    float buffer[8] = {0};
    if (n < 8) {
        memcpy(buffer, x, n * sizeof *buffer);
        x = buffer;
    }
    return _mm256_loadu_ps(x);
}

ALWAYS_INLINE __m256 magnitude(__m256 x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

static uint32_t largest_of(__m256i v)
{
    uint32_t lanes[8], largest = 0;
    _mm256_storeu_si256((void *)lanes, v);
    for (int i = 0; i < 8; i++) {
        largest = lanes[i] > largest ? lanes[i] : largest;
    }
    return largest;
}

typedef uint64_t codes8;

#define divisor_of(scale) _mm256_set1_ps(scale)

/* Computes tsr_e4m3_from_f32 on 8 lanes of finite quotients or infinities, as bytes. */
ALWAYS_INLINE codes8 divided_e4m3(__m256 x, __m256 divisor)
{
    const __m256 q = _mm256_div_ps(x, divisor), a = _mm256_min_ps(_mm256_set1_ps(448.0f), magnitude(q));
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFFF)), odd);
    const __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
    const __m256 step = _mm256_set1_ps(0x1p14f);
    const __m256i steps = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(a, step)), _mm256_castps_si256(step));
    const __m256 tiny = _mm256_cmp_ps(a, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ);
    const __m256i code = _mm256_blendv_epi8(normal, steps, _mm256_castps_si256(tiny));
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(q), 24), _mm256_set1_epi32(0x80));
    const __m256i signed_code = _mm256_min_epu32(_mm256_or_si256(code, sign), _mm256_set1_epi32(0xFF));
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(signed_code), _mm256_extracti128_si256(signed_code, 1));
    return (uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16(words, words));
}

#define TSR_BLOCK_FP8(name) tsr_##name##_avx2
#include "kernels/cpu/e4m3_division_body.h"
#include "kernels/cpu/e4m3_look_up_body.h"
/* uses the operations, the table and encode_by_division from above */
#include "kernels/cpu/e4m3_bands_body.h"
/* uses the functions of bands */
#include "kernels/cpu/block_fp8_body.h"

void tsr_amax_f32_avx2(const float *x, size_t rows, size_t cols, size_t ld, size_t block_cols, uint32_t *amax)
{
    for (size_t first = 0; first < cols; first += block_cols) {
        const size_t width = block_width(cols, first, block_cols);
        __m256i largest = _mm256_setzero_si256();
        for (size_t row = 0; row < rows; row++) {
            for (size_t col = 0; col < width; col += 8)
                largest = _mm256_max_epu32(
                    largest, _mm256_castps_si256(magnitude(load8_f32(x + row * ld + first + col, width - col))));
        }
        *amax++ = largest_of(largest);
    }
}

void tsr_widen_f16_avx2(const uint16_t *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i += 8) {
        uint16_t halves[8] = {0};
        float floats[8];
        const size_t count = n - i < 8 ? n - i : 8;
        memcpy(halves, x + i, count * sizeof *halves);
        _mm256_storeu_ps(floats, _mm256_cvtph_ps(_mm_loadu_si128((const void *)halves)));
        memcpy(out + i, floats, count * sizeof *floats);
    }
}
