/* Decodes e4m3 with AVX-512: to BF16 by table, to F16 and F32 by arithmetic, as in e4m3_bf16.h. */
#include "kernels/cpu/variants.h"
#include "kernels/cpu/x86/e4m3_bf16.h"

/* ---- BF16 ---- */

/* Repeats 16 bytes four times. */
ALWAYS_INLINE __m512i four_times(const uint8_t *bytes)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)bytes));
}

/* Like look_up_32, for 64 codes. */
ALWAYS_INLINE bool look_up_64(const uint8_t *codes, const table *t, uint16_t *y)
{
    const __m512i code = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), _mm512_loadu_si512(codes));
    const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi8(0x7F));
    const __m512i exponent = _mm512_and_si512(_mm512_srli_epi16(magnitude, 4), _mm512_set1_epi8(7));
    __m512i low = _mm512_shuffle_epi8(four_times(t->low), magnitude);
    __m512i high = _mm512_add_epi8(_mm512_shuffle_epi8(four_times(t->high), magnitude), exponent);
    const __mmask64 rare =
        _mm512_cmpgt_epi8_mask(_mm512_add_epi8(magnitude, _mm512_set1_epi8(0x78)), _mm512_set1_epi8(-10));
    bool found = false;
    if (rare != 0) {
        const __mmask64 small = _mm512_cmplt_epu8_mask(magnitude, _mm512_set1_epi8(8));
        const __mmask64 nan = _mm512_cmpeq_epi8_mask(magnitude, _mm512_set1_epi8(0x7F));
        low = _mm512_mask_shuffle_epi8(low, small, four_times(t->low_subnormal), magnitude);
        high = _mm512_mask_shuffle_epi8(high, small, four_times(t->high_subnormal), magnitude);
        low = _mm512_mask_set1_epi8(low, nan, (char)0xC0);
        high = _mm512_mask_set1_epi8(high, nan, 0x7F);
        found = nan != 0;
    }
    high = _mm512_ternarylogic_epi64(high, code, _mm512_set1_epi8((char)0x80), 0xF8); /* high | (code & 0x80) */
    _mm512_storeu_si512(y, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(y + 32, _mm512_unpackhi_epi8(low, high));
    return found;
}

ALWAYS_INLINE bool look_up(const uint8_t *codes, size_t n, const table *t, uint16_t *y)
{
    bool nan = false;
    size_t c = 0;
    for (; c + 64 <= n; c += 64) {
        fetch_ahead(codes + c, y + c, 64);
        nan |= look_up_64(codes + c, t, y + c);
    }
    for (; c + 32 <= n; c += 32)
        nan |= look_up_32(codes + c, t, y + c);
    return c < n ? compute(codes + c, n - c, t->scale, y + c) || nan : nan;
}

bool tsr_decode_e4m3_bf16_avx512(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                                 const float *scales, uint16_t *y, size_t ld)
{
    return decode_band(look_up, codes, rows, cols, ld_codes, block_cols, scales, y, ld);
}

/* ---- F16, F32 ---- */

/* Computes FP32 products of 16 magnitudes with one scale; the NaN code's product is the quiet NaN. */
static inline __m512 products(__m256i magnitude, __m512 scale)
{
    const __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(magnitude, 7)), _mm512_set1_ps(256));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7F));
    return _mm512_mask_blend_ps(nan, _mm512_mul_ps(value, scale), _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)));
}

static inline __m512 decode(__m256i code, __m512 scale)
{
    const __m512 magnitude = products(_mm256_and_si256(code, _mm256_set1_epi16(0x7F)), scale);
    const __m512i sign = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_srli_epi16(code, 7)), 31);
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(magnitude), sign));
}

static inline void store_f16(uint16_t *y, __mmask16 live, __m512 x)
{
    _mm256_mask_storeu_epi16(y, live, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline void store_f32(float *y, __mmask16 live, __m512 x)
{
    _mm512_mask_storeu_ps(y, live, x);
}

static inline __mmask16 live_of(size_t left)
{
    return (__mmask16)(left >= 16 ? 0xFFFF : (1u << left) - 1);
}

#define DECODE(name, type, store)                                                                             \
    bool tsr_decode_e4m3_##name##_avx512(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes,     \
                                         size_t block_cols, const float *scales, type *y, size_t ld)          \
    {                                                                                                         \
        const __m128i magnitudes = _mm_set1_epi8(0x7F);                                                       \
        __mmask16 nan = 0;                                                                                    \
        for (size_t r = 0; r < rows; r++, codes += ld_codes, y += ld) {                                       \
            for (size_t first = 0, b = 0; first < cols; first += block_cols, b++) {                           \
                const __m512 scale = _mm512_set1_ps(scales[b]);                                               \
                const size_t end = cols - first < block_cols ? cols : first + block_cols;                     \
                for (size_t c = first; c < end; c += 16) {                                                    \
                    const __mmask16 live = live_of(end - c);                                                  \
                    const __m128i code = _mm_maskz_loadu_epi8(live, codes + c);                               \
                    nan = _kor_mask16(nan, _mm_cmpeq_epi8_mask(_mm_and_si128(code, magnitudes), magnitudes)); \
                    store(y + c, live, decode(_mm256_cvtepu8_epi16(code), scale));                            \
                }                                                                                             \
            }                                                                                                 \
        }                                                                                                     \
        return nan != 0;                                                                                      \
    }

DECODE(f16, uint16_t, store_f16)
DECODE(f32, float, store_f32)
