/* Decoding e4m3 with AVX-512. To BF16 by table: a block has one scale, so its 128 magnitudes have 128 results, which
 * fit four registers; one look-up and one sign bit an element. To F16 and F32 by arithmetic, as in e4m3_decode_avx2.c.
 */
#include "kernels/cpu/variants.h"

#include <immintrin.h>

/* FP32 products of 16 magnitudes with one scale; the NaN code's product is the quiet NaN. */
static inline __m512 scaled(__m256i magnitude, __m512 scale)
{
    const __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(magnitude, 7)), _mm512_set1_ps(256));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7F));
    return _mm512_mask_blend_ps(nan, _mm512_mul_ps(value, scale), _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)));
}

static inline __m256i to_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_cvtepi32_epi16(
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16));
}

/* ---- BF16 ---- */

enum { GROUP = 64 }; /* blocks whose tables are kept at once: 16 KiB, half of the first cache */

static void make_table(float scale, uint16_t table[128])
{
    const __m256i lane = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int i = 0; i < 8; i++) {
        const __m256i magnitude = _mm256_add_epi16(lane, _mm256_set1_epi16((short)(16 * i)));
        _mm256_storeu_si256((__m256i *)(table + 16 * i), to_bf16(scaled(magnitude, _mm512_set1_ps(scale))));
    }
}

/* Codes [0, n) of one row of a block. Returns whether one is NaN. */
static inline bool decode_run(const uint8_t *codes, size_t n, const uint16_t table[128], uint16_t *y)
{
    const __m512i t0 = _mm512_loadu_si512(table), t1 = _mm512_loadu_si512(table + 32);
    const __m512i t2 = _mm512_loadu_si512(table + 64), t3 = _mm512_loadu_si512(table + 96);
    const __m512i sign = _mm512_set1_epi16((short)0x8000), magnitudes = _mm512_set1_epi16(0x7F);
    __mmask32 nan = 0;
    for (size_t c = 0; c < n; c += 32) {
        const __mmask32 live = n - c >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << (n - c)) - 1;
        const __m512i code = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(live, codes + c));
        nan |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(code, magnitudes), magnitudes);
        const __mmask32 upper = _mm512_test_epi16_mask(code, _mm512_set1_epi16(0x40));
        const __m512i low = _mm512_permutex2var_epi16(t0, code, t1), high = _mm512_permutex2var_epi16(t2, code, t3);
        const __m512i magnitude = _mm512_mask_blend_epi16(upper, low, high);
        /* magnitude | (code << 8 & sign) */
        const __m512i out = _mm512_ternarylogic_epi64(magnitude, _mm512_slli_epi16(code, 8), sign, 0xF8);
        _mm512_mask_storeu_epi16(y + c, live, out);
    }
    return nan != 0;
}

bool tsr_decode_e4m3_bf16_avx512(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                                 const float *scales, uint16_t *y, size_t ld)
{
    uint16_t tables[GROUP][128];
    bool nan = false;
    for (size_t first = 0, b = 0; first < cols; first += GROUP * block_cols, b += GROUP) {
        const size_t end = cols - first < GROUP * block_cols ? cols : first + GROUP * block_cols;
        for (size_t i = 0; first + i * block_cols < end; i++)
            make_table(scales[b + i], tables[i]);
        for (size_t r = 0; r < rows; r++) {
            for (size_t c = first, i = 0; c < end; c += block_cols, i++) {
                const size_t n = end - c < block_cols ? end - c : block_cols;
                nan |= decode_run(codes + r * ld_codes + c, n, tables[i], y + r * ld + c);
            }
        }
    }
    return nan;
}

/* ---- F16, F32 ---- */

static inline __m512 decode(__m256i code, __m512 scale)
{
    const __m512 magnitude = scaled(_mm256_and_si256(code, _mm256_set1_epi16(0x7F)), scale);
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
