/* Compiles integer decoding for AVX-512; packing to int4 uses intrinsics. */
#define TSR_INT(name)  tsr_##name##_avx512
#define TSR_PACKS_INT4 1
#include "kernels/cpu/int_decode_body.h"

#include <immintrin.h>

static inline __m512i paired(__m512i codes)
{
    return _mm512_maddubs_epi16(_mm512_add_epi8(codes, _mm512_set1_epi8(8)), _mm512_set1_epi16(0x1001));
}

void tsr_pack_int4_avx512(const int8_t *codes, size_t n, uint8_t *words)
{
    size_t i = 0;
    for (; i + 128 <= n; i += 128) {
        __builtin_prefetch(words + (i + n) / 2, 1);
        const __m512i both =
            _mm512_packus_epi16(paired(_mm512_loadu_si512(codes + i)), paired(_mm512_loadu_si512(codes + i + 64)));
        _mm512_storeu_si512(words + i / 2, _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), both));
    }
    for (; i < n; i += 64) {
        const size_t left = n - i;
        const __mmask64 live = left >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << left) - 1;
        const __mmask32 whole = left >= 64 ? ~(__mmask32)0 : ((__mmask32)1 << left / 2) - 1;
        const __m512i words_of = paired(_mm512_maskz_loadu_epi8(live, codes + i));
        _mm256_mask_storeu_epi8(words + i / 2, whole, _mm512_cvtepi16_epi8(words_of));
    }
}
