/* Decoding e4m3 with AVX2 and F16C. An e4m3 code, moved to where an F16 has its exponent and mantissa, is the F16 of
 * 1/256 of its value; that holds for subnormals, too. */
#include "kernels/cpu/variants.h"

#include <immintrin.h>
#include <string.h>

typedef struct eight {
    __m256 value; /* signed, unscaled; anything for NaN codes */
    __m256 nan;   /* all ones where the code is NaN */
    __m256i sign; /* the FP32 sign bit */
} eight;

static inline eight load(const uint8_t *codes)
{
    const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)codes));
    const __m128i magnitude = _mm_and_si128(wide, _mm_set1_epi16(0x7F));
    const __m128i half = _mm_slli_epi16(magnitude, 7);
    const __m256i sign = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_srli_epi16(wide, 7)), 31);
    const __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
    const __m256i nan = _mm256_cvtepi16_epi32(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7F)));
    return (eight){_mm256_or_ps(value, _mm256_castsi256_ps(sign)), _mm256_castsi256_ps(nan), sign};
}

/* Multiplies with one scale. NaN codes become the quiet NaN of their sign. */
static inline __m256 scaled(eight e, __m256 scale)
{
    const __m256i nan = _mm256_or_si256(e.sign, _mm256_set1_epi32(0x7FC00000));
    return _mm256_blendv_ps(_mm256_mul_ps(e.value, scale), _mm256_castsi256_ps(nan), e.nan);
}

/* Rounds to nearest even. The NaN of scaled() passes unchanged, because the low bits of its mantissa are zero. */
static inline __m128i to_bf16(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08));
}

static inline void store_bf16(void *y, __m256 x)
{
    _mm_storeu_si128(y, to_bf16(x));
}

static inline void store_f16(void *y, __m256 x)
{
    _mm_storeu_si128(y, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline void store_f32(void *y, __m256 x)
{
    _mm256_storeu_ps(y, x);
}

/* Tails go through a buffer of one vector. */
#define DECODE(name, type, store)                                                                       \
    bool tsr_decode_e4m3_##name##_avx2(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, \
                                       size_t block_cols, const float *scales, type *y, size_t ld)      \
    {                                                                                                   \
        __m256 nan = _mm256_setzero_ps();                                                               \
        for (size_t r = 0; r < rows; r++, codes += ld_codes, y += ld) {                                 \
            for (size_t first = 0, b = 0; first < cols; first += block_cols, b++) {                     \
                const __m256 scale = _mm256_set1_ps(scales[b]);                                         \
                const size_t end = cols - first < block_cols ? cols : first + block_cols;               \
                size_t c = first;                                                                       \
                for (; c + 8 <= end; c += 8) {                                                          \
                    const eight e = load(codes + c);                                                    \
                    nan = _mm256_or_ps(nan, e.nan);                                                     \
                    store(y + c, scaled(e, scale));                                                     \
                }                                                                                       \
                if (c < end) {                                                                          \
                    uint8_t in[8] = {0};                                                                \
                    type out[8];                                                                        \
                    memcpy(in, codes + c, end - c);                                                     \
                    const eight e = load(in);                                                           \
                    nan = _mm256_or_ps(nan, e.nan);                                                     \
                    store(out, scaled(e, scale));                                                       \
                    memcpy(y + c, out, (end - c) * sizeof *out);                                        \
                }                                                                                       \
            }                                                                                           \
        }                                                                                               \
        return _mm256_movemask_ps(nan) != 0;                                                            \
    }

DECODE(bf16, uint16_t, store_bf16)
DECODE(f16, uint16_t, store_f16)
DECODE(f32, float, store_f32)
