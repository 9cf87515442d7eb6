/* MXFP8 to BF16 with AVX-512 VBMI: the 128 magnitudes as low and high bytes in two pairs of registers, the same for all
 * groups, and the scale added to the exponent. */
#include "kernels/cpu/variants.h"

#include <immintrin.h>

typedef struct tables {
    __m512i low[2], high[2];
} tables;

static tables make_tables(void)
{
    uint8_t codes[128], low[128], high[128], scales[4] = {127, 127, 127, 127};
    uint16_t y[128];
    for (unsigned i = 0; i < 128; i++)
        codes[i] = (uint8_t)(i < 127 ? i : 0); /* NaN is not looked up */
    tsr_decode_mxfp8_bf16_avx512(codes, 128, scales, y);
    for (unsigned i = 0; i < 128; i++) {
        low[i] = (uint8_t)y[i];
        high[i] = (uint8_t)(y[i] >> 8);
    }
    return (tables){{_mm512_loadu_si512(low), _mm512_loadu_si512(low + 64)},
                    {_mm512_loadu_si512(high), _mm512_loadu_si512(high + 64)}};
}

static inline int is_usual(uint8_t scale)
{
    return scale >= 10 && scale <= 246;
}

/* Zeros stay zeros. */
static inline __m512i scaled(__m512i value, uint8_t scale)
{
    const __mmask32 not_zero = _mm512_test_epi16_mask(value, _mm512_set1_epi16(INT16_MAX));
    return _mm512_mask_add_epi16(value, not_zero, value, _mm512_set1_epi16((short)((scale - 127) * 128)));
}

bool tsr_decode_mxfp8_bf16_vbmi(const uint8_t *codes, size_t n, const uint8_t *scales, uint16_t *y)
{
    const tables t = make_tables();
    const __m512i sign = _mm512_set1_epi8(INT8_MIN), ones = _mm512_set1_epi8(-1);
    bool nan = false;
    size_t i = 0;
    for (; i + 64 <= n; i += 64, scales += 2) {
        const __m512i code = _mm512_loadu_si512(codes + i);
        const __mmask64 nans = _mm512_cmpeq_epi8_mask(_mm512_or_si512(code, sign), ones);
        if (__builtin_expect(nans != 0 || !is_usual(scales[0]) || !is_usual(scales[1]), 0)) {
            nan |= tsr_decode_mxfp8_bf16_avx512(codes + i, 64, scales, y + i);
            continue;
        }
        /* Interleaving works within 16-byte lanes: quarters of eight are dealt so that the results come out in order. */
        const __m512i dealt = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), code);
        const __m512i low = _mm512_permutex2var_epi8(t.low[0], dealt, t.low[1]);
        const __m512i magnitude = _mm512_permutex2var_epi8(t.high[0], dealt, t.high[1]);
        const __m512i high = _mm512_ternarylogic_epi64(magnitude, dealt, sign, 0xF8); /* magnitude | (dealt & sign) */
        _mm512_storeu_si512(y + i, scaled(_mm512_unpacklo_epi8(low, high), scales[0]));
        _mm512_storeu_si512(y + i + 32, scaled(_mm512_unpackhi_epi8(low, high), scales[1]));
    }
    nan |= tsr_decode_mxfp8_bf16_avx512(codes + i, n - i, scales, y + i);
    return nan;
}
