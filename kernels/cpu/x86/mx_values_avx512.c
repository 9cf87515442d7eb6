/* Decodes microscaling formats with AVX-512.
 *
 * The 8 magnitudes of E2M1 times t follow from two roundings, of t and 1.5 t, and from exponents. They form a table of
 * 16 words per group, indexed by the nibbles. E4M3 times a power of two needs only shifted bits and an addition to the
 * exponent, all in bytes. Groups whose results may be subnormal or infinite are left to the definition. */
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

#include <immintrin.h>
#include <stdbool.h>

enum { TOGETHER = 16 }; /* groups that are rounded together */
enum { AHEAD = 2048 };  /* bytes of codes that are prefetched; the next row is assumed to follow */

static inline __mmask16 live_of(size_t n)
{
    return (__mmask16)(n >= 16 ? 0xFFFF : (1u << n) - 1);
}

/* Rounds to BF16, in the upper half of each lane. */
static inline __m512i to_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
}

/* Rounded scales of 16 groups: bf16(t) in the lower and bf16(1.5 t) in the upper half of a lane; and bf16(t) in
 * both. */
typedef struct roundings {
    __m512i mixed, same;
} roundings;

static inline roundings round_all(__m512 t)
{
    const __m512i upper = _mm512_set1_epi32((int)0xFFFF0000u);
    const __m512i whole = to_bf16(t), half_more = to_bf16(_mm512_mul_ps(t, _mm512_set1_ps(1.5f)));
    const __m512i low = _mm512_srli_epi32(whole, 16);
    return (roundings){_mm512_or_si512(_mm512_and_si512(half_more, upper), low),
                       _mm512_or_si512(_mm512_and_si512(whole, upper), low)};
}

/* Returns a table with a word per code, twice 16: for one group, or for `lane` and the next one. */
ALWAYS_INLINE __m512i table_of(const roundings *r, __m512i lanes)
{
    /*                0      0.5     1  1.5  2    3    4    6  */
    const __m512i exponent = _mm512_broadcast_i32x4(_mm_setr_epi16(0, -128, 0, 0, 128, 128, 256, 256));
    const __m512i sign =
        _mm512_broadcast_i32x8(_mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, INT16_MIN, INT16_MIN, INT16_MIN, INT16_MIN,
                                                 INT16_MIN, INT16_MIN, INT16_MIN, INT16_MIN));
    const __m512i mantissas = _mm512_permutex2var_epi32(r->mixed, lanes, r->same);
    const __mmask32 not_zero = 0xFEFEFEFE;
    return _mm512_or_si512(_mm512_maskz_add_epi16(not_zero, mantissas, exponent), sign);
}

/* Entries 0 and 1 of a table take their mantissa from `same`, others from `mixed`. */
ALWAYS_INLINE __m512i first_lanes_of(bool two)
{
    const __m512i one = _mm512_setr_epi32(16, 0, 0, 0, 16, 0, 0, 0, 16, 0, 0, 0, 16, 0, 0, 0);
    return two ? _mm512_mask_add_epi32(one, 0xFF00, one, _mm512_set1_epi32(1)) : one;
}

/* Looks up 32 values of 16 bytes. */
ALWAYS_INLINE __m512i look_up(const uint8_t *packed, __m512i table, bool two)
{
    const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)packed));
    const __m512i codes = _mm512_or_si512(byte, _mm512_slli_epi32(byte, 12)); /* low 4 bits of each word */
    if (!two)
        return _mm512_permutexvar_epi16(codes, table); /* both halves are the same */
    const __m512i second = _mm512_maskz_set1_epi32(0xFF00, 0x00100010);
    /* (codes & 15) | second */
    return _mm512_permutexvar_epi16(_mm512_ternarylogic_epi32(codes, _mm512_set1_epi16(15), second, 0xEA), table);
}

/* Decodes n values, whole groups, at most TOGETHER; the last of an odd number of groups of 16 is not done. */
ALWAYS_INLINE void decode_groups(const uint8_t *packed, size_t n, const roundings *r, bool two, uint16_t *y)
{
    __m512i lanes = first_lanes_of(two);
    for (size_t i = 0; i + 32 <= n; i += 32) {
        _mm512_storeu_si512(y + i, look_up(packed + i / 2, table_of(r, lanes), two));
        lanes = _mm512_add_epi32(lanes, _mm512_set1_epi32(two ? 2 : 1));
    }
}

ALWAYS_INLINE void decode_e2m1(const uint8_t *packed, size_t n, size_t group, const float *t, bool two, uint16_t *y)
{
    for (size_t at = 0; at < n; at += TOGETHER * group, t += TOGETHER) {
        const size_t here = n - at < TOGETHER * group ? n - at : TOGETHER * group, groups = here / group;
        const __m512 scale = _mm512_mask_loadu_ps(_mm512_set1_ps(1), live_of(groups), t);
        const roundings r = round_all(scale);
        unsigned left = 0xFFFFu & ~(unsigned)(_mm512_cmp_ps_mask(scale, _mm512_set1_ps(0x1p-124f), _CMP_GE_OQ) &
                                              _mm512_cmp_ps_mask(scale, _mm512_set1_ps(0x1p123f), _CMP_LE_OQ));
        decode_groups(packed + at / 2, here, &r, two, y + at);
        if (two && groups % 2 != 0)
            left |= 1u << (groups - 1);
        for (; left != 0; left &= left - 1) {
            const size_t g = (size_t)__builtin_ctz(left), from = at + g * group;
            tsr_decode_e2m1_bf16_ref(packed + from / 2, group, group, t + g, y + from);
        }
    }
}

void tsr_decode_e2m1_bf16_avx512(const uint8_t *packed, size_t n, size_t group, const float *t, uint16_t *y)
{
    if (group == 32)
        decode_e2m1(packed, n, 32, t, false, y);
    else if (group == 16)
        decode_e2m1(packed, n, 16, t, true, y);
    else
        tsr_decode_e2m1_bf16_ref(packed, n, group, t, y);
}

/* FP32: the 16 products of a group are a table. */
void tsr_decode_e2m1_f32_avx512(const uint8_t *packed, size_t n, size_t group, const float *t, float *y)
{
    const __m512 values = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    if (group % 16 != 0) {
        tsr_decode_e2m1_f32_ref(packed, n, group, t, y);
        return;
    }
    for (size_t at = 0; at < n; at += group, t++) {
        const __m512 table = _mm512_mul_ps(values, _mm512_set1_ps(*t));
        for (size_t i = at; i < at + group; i += 16) {
            const __m512i byte = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(packed + i / 2)));
            const __m512i codes = _mm512_or_si512(byte, _mm512_slli_epi64(byte, 28)); /* low 4 bits of each lane */
            _mm512_storeu_ps(y + i, _mm512_permutexvar_ps(codes, table));
        }
    }
}

/* ---- MXFP8 ----
 *
 * Without its sign, a normal code is an exponent e of 4 bits and a mantissa of 3. BF16 has the same mantissa followed
 * by four zeros, and the exponent e + scale - 7. A subnormal code j is a normal number in BF16, with e down to -2. Its
 * 7 bits, read as an integer, would be j - 17, -10, -7, -4, -3, -2, -1 for j from 1 to 7. `raise` converts subnormal
 * codes to that form and adds 40 to all, so that none is negative; only 0 stays 0.
 *
 * The raised bits, shifted left by 4, have an exponent of e + 5, and scale - 12 is missing. Its upper bits are added to
 * the upper byte. The lowest bit is that of the scale; an odd scale takes 8 from the raised bits, which is one in the
 * exponent, and the upper byte gets one more. (0 less 8 saturates at 0, and nothing is added to the upper byte of
 * 0.) */

/* Decodes 64 codes, not NaN, of two groups with usual scales. */
ALWAYS_INLINE void decode64(__m512i code, const uint8_t scales[2], uint16_t *y)
{
    const __m512i sign = _mm512_set1_epi8(INT8_MIN), fifteen = _mm512_set1_epi8(15);
    const __m512i raise =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 23, 30, 33, 36, 37, 38, 39, 40, 40, 40, 40, 40, 40, 40, 40));
    const __m512i s = _mm512_mask_set1_epi8(_mm512_set1_epi8((char)scales[0]), 0xFF00FF00FF00FF00u, (char)scales[1]);
    const __m512i odd = _mm512_and_si512(s, _mm512_set1_epi8(1));
    const __m512i even_part = _mm512_sub_epi8(_mm512_avg_epu8(s, _mm512_setzero_si512()), _mm512_set1_epi8(6));
    /* Interleaving works within 16-byte lanes, so eighths are permuted first to get results in order. */
    const __m512i dealt = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), code);
    const __m512i size = _mm512_andnot_si512(sign, dealt);
    const __m512i raised = _mm512_add_epi8(size, _mm512_shuffle_epi8(raise, _mm512_min_epu8(size, fifteen)));
    const __m512i digits = _mm512_subs_epu8(raised, _mm512_slli_epi16(odd, 3));
    const __m512i low = _mm512_andnot_si512(fifteen, _mm512_slli_epi16(digits, 4));
    const __m512i upper = _mm512_and_si512(fifteen, _mm512_srli_epi16(digits, 4));
    const __m512i magnitude = _mm512_maskz_add_epi8(_mm512_test_epi8_mask(digits, digits), upper, even_part);
    const __m512i high = _mm512_ternarylogic_epi64(magnitude, dealt, sign, 0xF8); /* magnitude | (dealt & sign) */
    _mm512_storeu_si512(y, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(y + 32, _mm512_unpackhi_epi8(low, high));
}

ALWAYS_INLINE bool is_usual(uint8_t scale)
{
    return scale >= 10 && scale <= 246;
}

bool tsr_decode_mxfp8_bf16_avx512(const uint8_t *codes, size_t n, const uint8_t *scales, uint16_t *y)
{
    const __m512i sign = _mm512_set1_epi8(INT8_MIN), ones = _mm512_set1_epi8(-1);
    bool nan = false;
    size_t i = 0;
    for (; i + 64 <= n; i += 64, scales += 2) {
        _mm_prefetch((const char *)(codes + i + AHEAD), _MM_HINT_T0);
        const __m512i code = _mm512_loadu_si512(codes + i);
        const __mmask64 nans = _mm512_cmpeq_epi8_mask(_mm512_or_si512(code, sign), ones);
        if (__builtin_expect(nans != 0 || !is_usual(scales[0]) || !is_usual(scales[1]), 0))
            nan |= tsr_decode_mxfp8_bf16_ref(codes + i, 64, scales, y + i);
        else
            decode64(code, scales, y + i);
    }
    return tsr_decode_mxfp8_bf16_ref(codes + i, n - i, scales, y + i) || nan;
}
