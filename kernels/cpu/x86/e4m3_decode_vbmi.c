/* Decoding e4m3 to BF16 with AVX-512 VBMI: the table of a block's 128 results, split into low and high bytes, is two
 * pairs of registers; two look-ups and two interleavings give 64 elements. */
#include "kernels/cpu/variants.h"

#include <immintrin.h>

enum { GROUP = 64 }; /* blocks whose tables are kept at once: 16 KiB, half of the first cache */

typedef struct table {
    uint8_t low[128], high[128];
} table;

static void make_table(float scale, table *t)
{
    uint8_t codes[128];
    uint16_t y[128];
    for (int i = 0; i < 128; i += 64) {
        const __m512i lane =
            _mm512_set_epi8(63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43, 42, 41,
                            40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18,
                            17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        _mm512_storeu_si512(codes + i, _mm512_add_epi8(lane, _mm512_set1_epi8((char)i)));
    }
    tsr_decode_e4m3_bf16_avx512(codes, 1, 128, 128, 128, &scale, y, 128);
    for (int i = 0; i < 128; i += 32) {
        const __m512i word = _mm512_loadu_si512(y + i);
        _mm256_storeu_si256((__m256i *)(t->low + i), _mm512_cvtepi16_epi8(word));
        _mm256_storeu_si256((__m256i *)(t->high + i), _mm512_cvtepi16_epi8(_mm512_srli_epi16(word, 8)));
    }
}

/* The results of 64 codes, in order. */
typedef struct pair {
    __m512i first, second;
} pair;

static inline pair look_up(__m512i codes, const __m512i t[4])
{
    /* Interleaving works within 16-byte lanes: quarters of eight are dealt so that the results come out in order. */
    const __m512i dealt = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), codes);
    const __m512i low = _mm512_permutex2var_epi8(t[0], dealt, t[1]);
    const __m512i magnitude = _mm512_permutex2var_epi8(t[2], dealt, t[3]);
    /* magnitude | (code & 0x80) */
    const __m512i high = _mm512_ternarylogic_epi64(magnitude, dealt, _mm512_set1_epi8((char)0x80), 0xF8);
    return (pair){_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

static inline __mmask64 find_nan(__m512i codes)
{
    const __m512i all = _mm512_set1_epi8((char)0xFF);
    return _mm512_cmpeq_epi8_mask(_mm512_or_si512(codes, _mm512_set1_epi8((char)0x80)), all);
}

/* Codes [0, n) of one row of a block. Returns whether one is NaN. */
static inline bool decode_run(const uint8_t *codes, size_t n, const table *t, uint16_t *y)
{
    const __m512i tables[4] = {_mm512_loadu_si512(t->low), _mm512_loadu_si512(t->low + 64), _mm512_loadu_si512(t->high),
                               _mm512_loadu_si512(t->high + 64)};
    __mmask64 nan = 0;
    size_t c = 0;
    for (; c + 64 <= n; c += 64) {
        const __m512i code = _mm512_loadu_si512(codes + c);
        const pair out = look_up(code, tables);
        nan |= find_nan(code);
        _mm512_storeu_si512(y + c, out.first);
        _mm512_storeu_si512(y + c + 32, out.second);
    }
    if (c < n) {
        const __mmask64 live = ((__mmask64)1 << (n - c)) - 1;
        const __m512i code = _mm512_maskz_loadu_epi8(live, codes + c);
        const pair out = look_up(code, tables);
        nan |= find_nan(code);
        _mm512_mask_storeu_epi16(y + c, (__mmask32)live, out.first);
        _mm512_mask_storeu_epi16(y + c + 32, (__mmask32)(live >> 32), out.second);
    }
    return nan != 0;
}

bool tsr_decode_e4m3_bf16_vbmi(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                               const float *scales, uint16_t *y, size_t ld)
{
    table tables[GROUP];
    bool nan = false;
    for (size_t first = 0, b = 0; first < cols; first += GROUP * block_cols, b += GROUP) {
        const size_t end = cols - first < GROUP * block_cols ? cols : first + GROUP * block_cols;
        for (size_t i = 0; first + i * block_cols < end; i++)
            make_table(scales[b + i], &tables[i]);
        for (size_t r = 0; r < rows; r++) {
            for (size_t c = first, i = 0; c < end; c += block_cols, i++) {
                const size_t n = end - c < block_cols ? end - c : block_cols;
                nan |= decode_run(codes + r * ld_codes + c, n, &tables[i], y + r * ld + c);
            }
        }
    }
    return nan;
}
