/* Owns the e4m3 codes of BF16 by byte look-up.
 *
 * For one scale, the rounded quotient of a BF16 number depends on its 7 mantissa bits alone, but for the exponent,
 * which only shifts it: code = T[mantissa] + 8 * exponent, in bytes, modulo 256. T is made for each block by the very
 * arithmetic of the reference (an FP32 quotient, then rounding), so the bits are the same. That holds while source and
 * quotient are normal numbers and nothing is clamped; a vector that holds any other value goes the long way. */
#include "common/float_bits.h"
#include "kernels/cpu/block_fp8.h"

#include "kernels/cpu/variants.h"
#include "kernels/cpu/x86/e4m3_avx512.h"

#include <math.h>
#include <stdbool.h>

typedef struct table {
    __m512i t0, t1;         /* T[0..63], T[64..127] */
    __m512i lowest, extent; /* the table serves |x| whose bits are lowest .. lowest + extent; in every word */
} table;

static table make_table(float scale)
{
    /* scale = f * 2^e: the quotient (1 + m/128) / f lies in (1, 4), and is exact but for its exponent. */
    int e;
    const __m512 f = _mm512_set1_ps(frexpf(scale, &e));
    const __m512i offset = _mm512_set1_epi32(8 * (127 + e) + (120 << 3));
    _Alignas(64) uint8_t bytes[128];
    for (int m = 0; m < 128; m += 16) {
        const __m512i lane = _mm512_add_epi32(_mm512_set1_epi32(m),
                                              _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
        const __m512 x = _mm512_castsi512_ps(
            _mm512_or_si512(_mm512_slli_epi32(lane, 16), _mm512_castps_si512(_mm512_set1_ps(1.0f))));
        const __m512i q = _mm512_castps_si512(_mm512_div_ps(x, f));
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(q, 20), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(0x7FFFF)), odd);
        const __m512i code = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), offset);
        _mm_store_si128((void *)(bytes + m), _mm512_cvtepi32_epi8(code));
    }
    /* Bounds with room to spare: quotients from 2^-6 up, and below 464, where rounding would pass 448. */
    const float low = scale * 0x1.04p-6f, high = scale * 456.0f;
    const uint32_t low_bits = (tsr_f32_bits(low) + 0xFFFF) >> 16, high_bits = tsr_f32_bits(high) >> 16;
    const uint32_t lowest = low_bits < 0x80 ? 0x80 : low_bits; /* a subnormal x has no mantissa to look up */
    const uint32_t highest = high_bits > 0x7F7F ? 0x7F7F : high_bits;
    const bool usable = lowest <= highest;
    return (table){
        .t0 = _mm512_load_si512(bytes),
        .t1 = _mm512_load_si512(bytes + 64),
        .lowest = _mm512_set1_epi16((short)(usable ? lowest : 0x7FFF)),
        .extent = _mm512_set1_epi16((short)(usable ? highest - lowest : 0)),
    };
}

/* Whether every word of x is in the table's range. */
ALWAYS_INLINE bool served(const table *t, __m512i a, __m512i b)
{
    const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
    const __m512i above_a = _mm512_sub_epi16(_mm512_and_si512(a, magnitude), t->lowest);
    const __m512i above_b = _mm512_sub_epi16(_mm512_and_si512(b, magnitude), t->lowest);
    return _mm512_cmpgt_epu16_mask(_mm512_max_epu16(above_a, above_b), t->extent) == 0;
}

/* 64 codes: low bytes hold the mantissa and the exponent's last bit, high bytes the sign and the rest. */
ALWAYS_INLINE __m512i look_up(const table *t, __m512i a, __m512i b, __m512i evens, __m512i odds)
{
    const __m512i low = _mm512_permutex2var_epi8(a, evens, b);
    const __m512i high = _mm512_permutex2var_epi8(a, odds, b);
    const __m512i rounded = _mm512_permutex2var_epi8(t->t0, low, t->t1); /* looks at the index's low 7 bits only */
    const __m512i exponent16 = _mm512_and_si512(_mm512_slli_epi16(high, 4), _mm512_set1_epi8((char)0xF0));
    const __m512i exponent8 = _mm512_and_si512(_mm512_srli_epi16(low, 4), _mm512_set1_epi8(8));
    const __m512i code = _mm512_add_epi8(rounded, _mm512_or_si512(exponent16, exponent8));
    return _mm512_ternarylogic_epi32(code, high, _mm512_set1_epi8((char)0x80), 0xF8); /* code | (high & 0x80) */
}

typedef struct byte_order {
    __m512i evens, odds;
} byte_order;

static byte_order make_byte_order(void)
{
    _Alignas(64) uint8_t even[64], odd[64];
    for (int i = 0; i < 64; i++) {
        even[i] = (uint8_t)(2 * i);
        odd[i] = (uint8_t)(2 * i + 1);
    }
    return (byte_order){_mm512_load_si512(even), _mm512_load_si512(odd)};
}

/* One row of one block. */
ALWAYS_INLINE void encode_row(const uint16_t *x, size_t cols, const table *t, float scale, byte_order order,
                              uint8_t *codes)
{
    const __m512 divisor = _mm512_set1_ps(scale);
    size_t col = 0;
    for (; col + 64 <= cols; col += 64) {
        const __m512i a = _mm512_loadu_si512(x + col), b = _mm512_loadu_si512(x + col + 32);
        if (__builtin_expect(served(t, a, b), 1)) {
            _mm512_storeu_si512(codes + col, look_up(t, a, b, order.evens, order.odds));
        } else {
            _mm256_storeu_si256((void *)(codes + col), encode32(unpack_bf16(a), divisor));
            _mm256_storeu_si256((void *)(codes + col + 32), encode32(unpack_bf16(b), divisor));
        }
    }
    for (; col < cols; col += 32) {
        const __mmask32 tail = first_lanes(cols - col);
        _mm256_mask_storeu_epi8(codes + col, tail, encode32(load32_bf16(x + col, tail), divisor));
    }
}

void tsr_encode_e4m3_bf16_vbmi(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                               const float *scales, uint8_t *codes, size_t ld_codes)
{
    const byte_order order = make_byte_order();
    for (size_t col = 0; col < cols; col += block_cols, scales++) {
        const table t = make_table(*scales);
        for (size_t row = 0; row < rows; row++)
            encode_row(x + row * ld + col, block_width(cols, col, block_cols), &t, *scales, order,
                       codes + row * ld_codes + col);
    }
}

/* Finding amax waits for memory, and making codes waits for arithmetic. So each row of a group of blocks is encoded
 * while the same row of the next group is searched, and one hides the other. The number of blocks and the prefetch
 * distance were the best on two machines. */
enum { GROUP = 4 };

typedef struct band {
    const uint16_t *x;
    size_t rows, cols, ld; /* whole blocks only */
    bool power_of_two;
    uint8_t *codes;
    size_t ld_codes;
} band;

/* How many blocks the group has that begins at column `first`; 0 after the last one. */
ALWAYS_INLINE size_t group_size(const band *b, size_t first, size_t block_cols)
{
    const size_t left = (b->cols - first) / block_cols;
    return left < GROUP ? left : GROUP;
}

/* Always inlined, so that a constant `block_cols` unrolls the rows of blocks. */
ALWAYS_INLINE void quantize_blocks(const band *b, size_t block_cols, uint32_t *amax, float *scales)
{
    const byte_order order = make_byte_order();
    __m512i found[GROUP] = {0}; /* for the next group */
    for (size_t row = 0; row < b->rows; row++) {
        prefetch_read((const char *)(b->x + (row + 2 * ROWS_AHEAD) * b->ld),
                      group_size(b, 0, block_cols) * block_cols * 2);
        for (size_t i = 0; i < group_size(b, 0, block_cols); i++)
            found[i] = amax_row_bf16(found[i], b->x + row * b->ld + i * block_cols, block_cols);
    }
    for (size_t first = 0; first < b->cols; first += GROUP * block_cols, amax += GROUP, scales += GROUP) {
        const size_t blocks = group_size(b, first, block_cols), next = first + blocks * block_cols;
        const size_t next_blocks = group_size(b, next, block_cols);
        table tables[GROUP];
        for (size_t i = 0; i < blocks; i++) {
            amax[i] = _mm512_reduce_max_epu32(larger_words(found[i]));
            scales[i] = tsr_e4m3_scale(amax[i], b->power_of_two);
            tables[i] = make_table(scales[i]);
            found[i] = _mm512_setzero_si512();
        }
        for (size_t row = 0; row < b->rows; row++) {
            const uint16_t *const x = b->x + row * b->ld;
            uint8_t *const codes = b->codes + row * b->ld_codes + first;
            prefetch_read((const char *)(x + ROWS_AHEAD * b->ld + next), next_blocks * block_cols * sizeof *x);
            prefetch_write(codes + ROWS_AHEAD * b->ld_codes, blocks * block_cols);
            for (size_t i = 0; i < blocks; i++) {
                encode_row(x + first + i * block_cols, block_cols, &tables[i], scales[i], order,
                           codes + i * block_cols);
                if (i < next_blocks)
                    found[i] = amax_row_bf16(found[i], x + next + i * block_cols, block_cols);
            }
        }
    }
}

void tsr_quantize_e4m3_bf16_vbmi(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                 bool power_of_two, uint32_t *amax, float *scales, uint8_t *codes, size_t ld_codes)
{
    const size_t whole = cols / block_cols * block_cols;
    const band b = {x, rows, whole, ld, power_of_two, codes, ld_codes};
    if (block_cols == 128)
        quantize_blocks(&b, 128, amax, scales);
    else
        quantize_blocks(&b, block_cols, amax, scales);
    if (whole < cols) /* a ragged last block */
        tsr_quantize_e4m3_bf16_avx512(x + whole, rows, cols - whole, ld, block_cols, power_of_two,
                                      amax + whole / block_cols, scales + whole / block_cols, codes + whole, ld_codes);
}
