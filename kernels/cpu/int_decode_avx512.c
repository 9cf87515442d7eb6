/* Integer decoding, compiled for avx512; packing to int4 by hand. */
#define TSR_INT(name)  tsr_##name##_avx512
#define TSR_PACKS_INT4 1
#include "kernels/cpu/int_decode_body.h"

#include <immintrin.h>

void tsr_pack_int4_avx512(const int8_t *codes, size_t n, uint8_t *words)
{
    const __m512i eight = _mm512_set1_epi8(8), low = _mm512_set1_epi16(0x000F), high = _mm512_set1_epi16(0x00F0);
    for (size_t i = 0; i < n; i += 64) {
        const size_t left = n - i;
        const __mmask64 live = left >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << left) - 1;
        const __m512i pairs = _mm512_add_epi8(_mm512_maskz_loadu_epi8(live, codes + i), eight);
        const __m512i packed =
            _mm512_or_si512(_mm512_and_si512(pairs, low), _mm512_and_si512(_mm512_srli_epi16(pairs, 4), high));
        const __mmask32 whole = left >= 64 ? ~(__mmask32)0 : ((__mmask32)1 << left / 2) - 1;
        _mm256_mask_storeu_epi8(words + i / 2, whole, _mm512_cvtepi16_epi8(packed));
    }
}
