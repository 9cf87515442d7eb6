/* Decodes e4m3 to BF16, for AVX2 and AVX-512: with a table of 16 results per block, or by arithmetic where the table is
 * not valid.
 *
 * If neither is subnormal, the results of a code and of the code with an exponent one higher differ only in the
 * exponent, by one. So the results of two exponents suffice; for the others, half of the distance of the exponents is
 * added to the upper byte. Subnormal codes have a separate table.
 *
 * By arithmetic: an e4m3 code, moved to the position of F16's exponent and mantissa, is 1/256 of its value as F16, also
 * for subnormals. */
#pragma once

#include "kernels/cpu/prefetch.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- by arithmetic ---- */

typedef struct eight {
    __m256 value; /* signed, unscaled; undefined for NaN codes */
    __m256 nan;   /* all ones where the code is NaN */
    __m256i sign; /* the FP32 sign bit */
} eight;

ALWAYS_INLINE eight load_eight(const uint8_t *codes)
{
    const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)codes));
    const __m128i magnitude = _mm_and_si128(wide, _mm_set1_epi16(0x7F));
    const __m128i half = _mm_slli_epi16(magnitude, 7);
    const __m256i sign = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_srli_epi16(wide, 7)), 31);
    const __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
    const __m256i nan = _mm256_cvtepi16_epi32(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7F)));
    return (eight){_mm256_or_ps(value, _mm256_castsi256_ps(sign)), _mm256_castsi256_ps(nan), sign};
}

/* Multiplies by one scale. NaN codes become the quiet NaN of their sign. */
ALWAYS_INLINE __m256 scaled(eight e, __m256 scale)
{
    const __m256i nan = _mm256_or_si256(e.sign, _mm256_set1_epi32(0x7FC00000));
    return _mm256_blendv_ps(_mm256_mul_ps(e.value, scale), _mm256_castsi256_ps(nan), e.nan);
}

/* Rounds to nearest even. The NaN of scaled() passes unchanged, because the low bits of its mantissa are zero. */
ALWAYS_INLINE __m128i to_bf16(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08));
}

/* Returns true if one of n codes is NaN. */
ALWAYS_INLINE bool compute(const uint8_t *codes, size_t n, float scale, uint16_t *y)
{
    __m256 nan = _mm256_setzero_ps();
    size_t c = 0;
    for (; c + 8 <= n; c += 8) {
        const eight e = load_eight(codes + c);
        nan = _mm256_or_ps(nan, e.nan);
        _mm_storeu_si128((__m128i *)(y + c), to_bf16(scaled(e, _mm256_set1_ps(scale))));
    }
    if (c < n) {
        uint8_t in[8] = {0};
        uint16_t out[8];
        memcpy(in, codes + c, n - c);
        const eight e = load_eight(in);
        nan = _mm256_or_ps(nan, e.nan);
        _mm_storeu_si128((__m128i *)out, to_bf16(scaled(e, _mm256_set1_ps(scale))));
        memcpy(y + c, out, (n - c) * sizeof *out);
    }
    return _mm256_movemask_ps(nan) != 0;
}

/* ---- by table ---- */

enum {
    TABLES = 64,  /* kept at the same time */
    FEWEST = 128, /* codes of a block for which a table pays */
};

/* Low and high bytes of a block's results, indexed by the lowest 4 bits of a code. The high byte is lower by 4 for the
 * exponents 8 and 9, and for subnormal codes. */
typedef struct table {
    uint8_t low[16], high[16], low_subnormal[16], high_subnormal[16];
    float scale;
    bool holds;
} table;

/* Makes the table. Returns true if it is valid: no result of a normal code is subnormal or too large. */
ALWAYS_INLINE bool make_table(table *t)
{
    uint8_t codes[32];
    uint16_t y[32];
    for (int i = 0; i < 16; i++) {
        codes[i] = (uint8_t)(0x40 + i);
        codes[16 + i] = (uint8_t)i;
    }
    compute(codes, 32, t->scale, y);
    for (int i = 0; i < 16; i++) {
        t->low[i] = (uint8_t)y[i];
        t->high[i] = (uint8_t)((y[i] >> 8) - 4);
        t->low_subnormal[i] = (uint8_t)y[16 + i];
        t->high_subnormal[i] = (uint8_t)(y[16 + i] >> 8);
    }
    return t->scale >= 0x1p-100f && t->scale <= 0x1p100f;
}

/* 16 bytes, twice. */
ALWAYS_INLINE __m256i both(const uint8_t *bytes)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes));
}

/* 32 codes. */
ALWAYS_INLINE bool look_up_32(const uint8_t *codes, const table *t, uint16_t *y)
{
    /* Interleaving works within 16-byte lanes, so quarters are permuted first to get results in order. */
    const __m256i code = _mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i *)codes), 0xD8);
    const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi8(0x7F));
    const __m256i exponent = _mm256_and_si256(_mm256_srli_epi16(magnitude, 4), _mm256_set1_epi8(7));
    __m256i low = _mm256_shuffle_epi8(both(t->low), magnitude);
    __m256i high = _mm256_add_epi8(_mm256_shuffle_epi8(both(t->high), magnitude), exponent);
    /* Subnormal magnitudes, those below 8, become 0x78 or more. NaN, 0x7F, becomes -9. */
    const __m256i rare = _mm256_cmpgt_epi8(_mm256_add_epi8(magnitude, _mm256_set1_epi8(0x78)), _mm256_set1_epi8(-10));
    bool found = false;
    if (!_mm256_testz_si256(rare, rare)) {
        const __m256i small = _mm256_cmpgt_epi8(_mm256_set1_epi8(8), magnitude);
        const __m256i nan = _mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(0x7F));
        low = _mm256_blendv_epi8(low, _mm256_shuffle_epi8(both(t->low_subnormal), magnitude), small);
        high = _mm256_blendv_epi8(high, _mm256_shuffle_epi8(both(t->high_subnormal), magnitude), small);
        low = _mm256_blendv_epi8(low, _mm256_set1_epi8((char)0xC0), nan);
        high = _mm256_blendv_epi8(high, _mm256_set1_epi8(0x7F), nan);
        found = !_mm256_testz_si256(nan, nan);
    }
    high = _mm256_or_si256(high, _mm256_xor_si256(code, magnitude)); /* the sign */
    _mm256_storeu_si256((__m256i *)y, _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256((__m256i *)(y + 16), _mm256_unpackhi_epi8(low, high));
    return found;
}

/* ---- a band of blocks ---- */

/* Prefetches codes and results a few blocks ahead. A disk has written the codes to memory, so neither codes nor results
 * are in a cache of this processor; without prefetching, nearly every store waits for its line. */
ALWAYS_INLINE void fetch_ahead(const uint8_t *codes, uint16_t *y, size_t n)
{
    enum { AHEAD = 4096 }; /* bytes */
    prefetch_read(codes + AHEAD, n);
    prefetch_write((const uint8_t *)y + AHEAD, 2 * n);
}

/* Decodes codes [0, n) of one row of a block whose table is valid. */
typedef bool look_up_fn(const uint8_t *codes, size_t n, const table *t, uint16_t *y);

ALWAYS_INLINE bool decode_band(look_up_fn *look_up, const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes,
                               size_t block_cols, const float *scales, uint16_t *y, size_t ld)
{
    const bool worth = rows * (block_cols < cols ? block_cols : cols) >= FEWEST;
    table tables[TABLES];
    bool nan = false;
    for (size_t first = 0, b = 0; first < cols; first += TABLES * block_cols, b += TABLES) {
        const size_t end = cols - first < TABLES * block_cols ? cols : first + TABLES * block_cols;
        for (size_t i = 0; first + i * block_cols < end; i++) {
            tables[i].scale = scales[b + i];
            tables[i].holds = worth && make_table(&tables[i]);
        }
        for (size_t r = 0; r < rows; r++) {
            for (size_t c = first, i = 0; c < end; c += block_cols, i++) {
                const size_t n = end - c < block_cols ? end - c : block_cols;
                const uint8_t *const from = codes + r * ld_codes + c;
                uint16_t *const to = y + r * ld + c;
                nan |= tables[i].holds ? look_up(from, n, &tables[i], to) : compute(from, n, tables[i].scale, to);
            }
        }
    }
    return nan;
}
