/* Decodes microscaling formats with AVX2, with the tables that mx_values_avx512.c explains; here a table of words is
 * two tables of bytes. */
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"
#include "kernels/cpu/x86/nibble_tables_avx2.h"

#include <immintrin.h>
#include <stdbool.h>

enum { TOGETHER = 8 }; /* groups that are rounded together */
enum { AHEAD = 2048 }; /* bytes of codes that are prefetched; the next row is assumed to follow */

/* Rounds to BF16, in the upper half of each lane. */
ALWAYS_INLINE __m256i to_bf16(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
}

/* Rounded scales of 8 groups: bf16(t) in the lower and bf16(1.5 t) in the upper half of a lane; and bf16(t) in both. */
typedef struct roundings {
    _Alignas(32) uint32_t mixed[TOGETHER], same[TOGETHER];
} roundings;

/* Rounds the scales. Returns a mask of the groups that are left to the definition. */
ALWAYS_INLINE unsigned round_all(const float *t_of, roundings *r)
{
    const __m256 t = _mm256_loadu_ps(t_of);
    const __m256i upper = _mm256_set1_epi32((int)0xFFFF0000u);
    const __m256i whole = to_bf16(t), half_more = to_bf16(_mm256_mul_ps(t, _mm256_set1_ps(1.5f)));
    const __m256i low = _mm256_srli_epi32(whole, 16);
    _mm256_store_si256((__m256i *)r->mixed, _mm256_or_si256(_mm256_and_si256(half_more, upper), low));
    _mm256_store_si256((__m256i *)r->same, _mm256_or_si256(_mm256_and_si256(whole, upper), low));
    const __m256 usual = _mm256_and_ps(_mm256_cmp_ps(t, _mm256_set1_ps(0x1p-124f), _CMP_GE_OQ),
                                       _mm256_cmp_ps(t, _mm256_set1_ps(0x1p123f), _CMP_LE_OQ));
    return 0xFFu & ~(unsigned)_mm256_movemask_ps(usual);
}

ALWAYS_INLINE byte_tables tables_of(const roundings *r, size_t a, size_t b)
{
    /*                                                          0  0.5   1  1.5  2    3    4    6  */
    const __m256i exponent = _mm256_broadcastsi128_si256(_mm_setr_epi16(0, -128, 0, 0, 128, 128, 256, 256));
    const __m256i not_zero = _mm256_broadcastsi128_si256(_mm_setr_epi16(0, -1, -1, -1, -1, -1, -1, -1));
    const __m256i evens =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14));
    const __m256i odds =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15));
    const __m256i sign = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, INT8_MIN, INT8_MIN, INT8_MIN,
                                                                   INT8_MIN, INT8_MIN, INT8_MIN, INT8_MIN, INT8_MIN));
    __m256i mixed = _mm256_set1_epi32((int)r->mixed[a]), same = _mm256_set1_epi32((int)r->same[a]);
    if (a != b) {
        mixed = _mm256_blend_epi32(mixed, _mm256_set1_epi32((int)r->mixed[b]), 0xF0);
        same = _mm256_blend_epi32(same, _mm256_set1_epi32((int)r->same[b]), 0xF0);
    }
    const __m256i mantissas = _mm256_blend_epi32(mixed, same, 0x11);
    const __m256i words = _mm256_and_si256(_mm256_add_epi16(mantissas, exponent), not_zero);
    return (byte_tables){_mm256_shuffle_epi8(words, evens), _mm256_or_si256(_mm256_shuffle_epi8(words, odds), sign)};
}

ALWAYS_INLINE void decode_e2m1(const uint8_t *packed, size_t n, size_t group, const float *t, uint16_t *y)
{
    const size_t whole = n - n % (TOGETHER * group);
    for (size_t at = 0; at < whole; at += TOGETHER * group, t += TOGETHER) {
        roundings r;
        unsigned left = round_all(t, &r);
        for (size_t i = at, g = 0; i < at + TOGETHER * group; i += 32, g += 32 / group)
            look_up(packed + i / 2, tables_of(&r, g, group == 32 ? g : g + 1), y + i);
        for (; left != 0; left &= left - 1) {
            const size_t g = (size_t)__builtin_ctz(left), from = at + g * group;
            tsr_decode_e2m1_bf16_ref(packed + from / 2, group, group, t + g, y + from);
        }
    }
    tsr_decode_e2m1_bf16_ref(packed + whole / 2, n - whole, group, t, y + whole);
}

void tsr_decode_e2m1_bf16_avx2(const uint8_t *packed, size_t n, size_t group, const float *t, uint16_t *y)
{
    if (group == 32)
        decode_e2m1(packed, n, 32, t, y);
    else if (group == 16)
        decode_e2m1(packed, n, 16, t, y);
    else
        tsr_decode_e2m1_bf16_ref(packed, n, group, t, y);
}

/* FP32: the 8 products of a group are a table; the sign is that of the code. */
void tsr_decode_e2m1_f32_avx2(const uint8_t *packed, size_t n, size_t group, const float *t, float *y)
{
    const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    if (group % 8 != 0) {
        tsr_decode_e2m1_f32_ref(packed, n, group, t, y);
        return;
    }
    for (size_t at = 0; at < n; at += group, t++) {
        const __m256 table = _mm256_mul_ps(magnitudes, _mm256_set1_ps(*t));
        for (size_t i = at; i < at + group; i += 8) {
            int four;
            __builtin_memcpy(&four, packed + i / 2, sizeof four);
            const __m256i byte = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
            const __m256i codes = _mm256_or_si256(byte, _mm256_slli_epi64(byte, 28)); /* low 4 bits of each lane */
            const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28), _mm256_set1_epi32(INT32_MIN));
            const __m256 size = _mm256_permutevar8x32_ps(table, codes);
            _mm256_storeu_ps(y + i, _mm256_or_ps(size, _mm256_castsi256_ps(sign)));
        }
    }
}

/* ---- MXFP8 ---- */

/* Decodes 32 codes, not NaN, with a usual scale to bytes of BF16, as mx_values_avx512.c explains. */
ALWAYS_INLINE void decode32(__m256i code, uint8_t scale, uint16_t *y)
{
    const __m256i sign = _mm256_set1_epi8(INT8_MIN), zero = _mm256_setzero_si256();
    const __m256i raise =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 23, 30, 33, 36, 37, 38, 39, 40, 40, 40, 40, 40, 40, 40, 40));
    const __m256i s = _mm256_set1_epi8((char)scale), odd = _mm256_and_si256(s, _mm256_set1_epi8(1));
    const __m256i even_part = _mm256_sub_epi8(_mm256_avg_epu8(s, zero), _mm256_set1_epi8(6));
    /* Interleaving works within 16-byte lanes, so quarters are permuted first to get results in order. */
    const __m256i dealt = _mm256_permute4x64_epi64(code, _MM_SHUFFLE(3, 1, 2, 0));
    const __m256i size = _mm256_andnot_si256(sign, dealt);
    const __m256i raised =
        _mm256_add_epi8(size, _mm256_shuffle_epi8(raise, _mm256_min_epu8(size, _mm256_set1_epi8(15))));
    const __m256i digits = _mm256_subs_epu8(raised, _mm256_slli_epi16(odd, 3));
    const __m256i low = _mm256_and_si256(_mm256_slli_epi16(digits, 4), _mm256_set1_epi8((char)0xF0));
    const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(digits, 4), _mm256_set1_epi8(15));
    const __m256i magnitude = _mm256_andnot_si256(_mm256_cmpeq_epi8(digits, zero), _mm256_add_epi8(upper, even_part));
    const __m256i high = _mm256_or_si256(magnitude, _mm256_and_si256(dealt, sign));
    _mm256_storeu_si256((__m256i *)y, _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256((__m256i *)(y + 16), _mm256_unpackhi_epi8(low, high));
}

bool tsr_decode_mxfp8_bf16_avx2(const uint8_t *codes, size_t n, const uint8_t *scales, uint16_t *y)
{
    const __m256i sign = _mm256_set1_epi8(INT8_MIN), ones = _mm256_set1_epi8(-1);
    bool nan = false;
    for (size_t i = 0; i < n; i += 32) {
        const uint8_t scale = scales[i / 32];
        _mm_prefetch((const char *)(codes + i + AHEAD), _MM_HINT_T0);
        const __m256i code = _mm256_loadu_si256((const __m256i *)(codes + i));
        const __m256i nans = _mm256_cmpeq_epi8(_mm256_or_si256(code, sign), ones);
        if (__builtin_expect(!_mm256_testz_si256(nans, nans) || scale < 10 || scale > 246, 0))
            nan |= tsr_decode_mxfp8_bf16_ref(codes + i, 32, scales + i / 32, y + i);
        else
            decode32(code, scale, y + i);
    }
    return nan;
}
