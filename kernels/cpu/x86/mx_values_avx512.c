/* Values of the microscaling formats with AVX-512.
 *
 * The 8 magnitudes of E2M1 times t are two roundings, of t and 1.5 t, and exponents: a table of 16 words for each group,
 * looked up with the nibbles. E4M3 with a power of two is its bits moved, and an addition to the exponent. Groups whose
 * results may be subnormal or infinite are left to the definition. */
#include "kernels/cpu/variants.h"
#include "kernels/cpu/x86/always_inline.h"

#include <immintrin.h>

enum { TOGETHER = 16 }; /* groups whose roundings are made at once */

static inline __mmask16 live_of(size_t n)
{
    return (__mmask16)(n >= 16 ? 0xFFFF : (1u << n) - 1);
}

/* The rounded BF16, in the upper half of each lane. */
static inline __m512i to_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
}

/* Of 16 groups: bf16(t) in the lower and bf16(1.5 t) in the upper half of a lane; and bf16(t) in both. */
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

/* A word for each code, twice 16: of one group, or of `lane` and the next one. */
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

/* Codes 0 and 1 of a table take their mantissa from `same`, others from `mixed`. */
ALWAYS_INLINE __m512i first_lanes_of(bool two)
{
    const __m512i one = _mm512_setr_epi32(16, 0, 0, 0, 16, 0, 0, 0, 16, 0, 0, 0, 16, 0, 0, 0);
    return two ? _mm512_mask_add_epi32(one, 0xFF00, one, _mm512_set1_epi32(1)) : one;
}

/* 32 values of 16 bytes. */
ALWAYS_INLINE __m512i look_up(const uint8_t *packed, __m512i table, bool two)
{
    const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)packed));
    const __m512i codes = _mm512_or_si512(byte, _mm512_slli_epi32(byte, 12)); /* low 4 bits of each word */
    if (!two)
        return _mm512_permutexvar_epi16(codes, table); /* its two halves are the same */
    const __m512i second = _mm512_maskz_set1_epi32(0xFF00, 0x00100010);
    /* (codes & 15) | second */
    return _mm512_permutexvar_epi16(_mm512_ternarylogic_epi32(codes, _mm512_set1_epi16(15), second, 0xEA), table);
}

/* n values, whole groups, at most TOGETHER; the last of an odd number of groups of 16 is not done. */
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

/* ---- MXFP8 ---- */

/* BF16 of the subnormals, 0 ... 7 times 2^-9. */
ALWAYS_INLINE __m512i subnormals(void)
{
    return _mm512_broadcast_i32x4(_mm_setr_epi16(0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60));
}

bool tsr_decode_mxfp8_bf16_avx512(const uint8_t *codes, size_t n, const uint8_t *scales, uint16_t *y)
{
    const __m512i magnitudes = _mm512_set1_epi16(0x7F), eight = _mm512_set1_epi16(8), table = subnormals();
    bool nan = false;
    for (size_t i = 0; i < n; i += 32) {
        const uint8_t scale = scales[i / 32];
        const __m512i code = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(codes + i)));
        const __m512i magnitude = _mm512_and_si512(code, magnitudes);
        const __mmask32 nans = _mm512_cmpeq_epi16_mask(magnitude, magnitudes);
        if (__builtin_expect(nans != 0 || scale < 10 || scale > 246, 0)) {
            nan |= tsr_decode_mxfp8_bf16_ref(codes + i, 32, scales + i / 32, y + i);
            continue;
        }
        const __m512i moved = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
        const __m512i value =
            _mm512_mask_permutexvar_epi16(moved, _mm512_cmplt_epu16_mask(magnitude, eight), magnitude, table);
        const __m512i scaled = _mm512_maskz_add_epi16(_mm512_test_epi16_mask(magnitude, magnitude), value,
                                                      _mm512_set1_epi16((short)((scale - 127) * 128)));
        /* scaled | (code << 8 & 0x8000) */
        _mm512_storeu_si512(
            y + i, _mm512_ternarylogic_epi32(scaled, _mm512_slli_epi16(code, 8), _mm512_set1_epi16(INT16_MIN), 0xF8));
    }
    return nan;
}
