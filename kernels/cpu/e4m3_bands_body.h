/* Block FP8 of BF16, written once for AVX2, AVX-512 and NEON: amax and codes of bands, and both in one pass. Only their
 * files include it. Each first defines these operations (for example in x86/simd_avx2.h), with registers of STEP
 * bytes:
 *
 *   vec, v_load(p), v_store(p, x), v_zero()    no alignment needed
 *   v_words(w), v_bytes(b), v_lanes(p)         one word or byte everywhere; the 16 bytes at p in every 16-byte lane
 *   v_and, v_or, v_add8, v_sub8, v_adds8       adds8 saturates, unsigned
 *   v_max8, v_max16, v_subs16                  unsigned; subs16 saturates at 0
 *   v_left16(x, n), v_right16(x, n)            words shifted
 *   v_shuffle(table, i)                        in every lane: byte i of the table
 *   v_pack(a, b), v_pack_signed(a, b)          signed words as bytes that saturate, lane by lane: "packed order"
 *   v_in_order(x), v_in_packed_order(x)        bytes from packed order to that of columns, and back
 *   v_one_more_above(x, a, b)                  x + (a > b), signed bytes
 *   v_with_signs(x, signs)                     x | (signs & 0x80)
 *   v_some_above8(x, limit)                    true if any byte, unsigned, is above
 *   v_largest16(x)                             the largest word
 *
 * and how a row is encoded:
 *
 *   encode_by_division(x, n, scale, codes)     the definition, for any finite x
 *   table, make_table(scale)                   data for encoding a block; member `scale` is its scale
 *   encode_steps(x, n, t, codes)               n columns, whole STEPs; returns true if all codes are those of normal
 *                                              numbers, and none was clamped
 *
 * TSR_BLOCK_FP8(name) adds the suffix of the form to the name of a function. */
#pragma once

#include "common/float_bits.h"
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/block_fp8.h"
#include "kernels/cpu/prefetch.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum {
    SEGMENT = 128,  /* columns that are encoded, checked and measured together */
    GROUP = 4,      /* adjacent blocks; see quantize_blocks */
    ROWS_AHEAD = 8, /* Rows to prefetch: their distance is too large for the hardware's prefetchers. */
};

/* Returns the width of the block that begins at `col`. */
ALWAYS_INLINE size_t block_width(size_t cols, size_t col, size_t block_cols)
{
    return cols - col < block_cols ? cols - col : block_cols;
}

#include "kernels/cpu/e4m3_error_body.h" /* with SEGMENT and block_width */

/* ---- amax ---- */

/* Returns the largest magnitudes, word by word, of `largest` and a row. */
ALWAYS_INLINE vec amax_row(vec largest, const uint16_t *x, size_t n)
{
    const vec magnitude = v_words(0x7FFF);
    size_t i = 0;
    for (; i + STEP / 2 <= n; i += STEP / 2)
        largest = v_max16(largest, v_and(v_load(x + i), magnitude));
    if (i < n) {
        uint16_t rest[STEP / 2] = {0};
        memcpy(rest, x + i, (n - i) * sizeof *x);
        largest = v_max16(largest, v_and(v_load(rest), magnitude));
    }
    return largest;
}

ALWAYS_INLINE void amax_band(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols, uint32_t *amax)
{
    enum { SIDE = 32 }; /* adjacent blocks that are searched row by row, in long runs of memory */
    for (size_t first = 0; first < cols; first += SIDE * block_cols) {
        const size_t width = block_width(cols, first, SIDE * block_cols);
        vec largest[SIDE];
        for (size_t i = 0; i < SIDE; i++)
            largest[i] = v_zero();
        for (size_t row = 0; row < rows; row++) {
            const uint16_t *const at = x + row * ld + first;
            prefetch_read(at + ROWS_AHEAD * ld, width * sizeof *x);
            for (size_t col = 0, i = 0; col < width; col += block_cols, i++)
                largest[i] = amax_row(largest[i], at + col, block_width(width, col, block_cols));
        }
        for (size_t col = 0, i = 0; col < width; col += block_cols, i++)
            *amax++ = v_largest16(largest[i]) << 16;
    }
}

/* ---- codes ---- */

/* Encodes columns that are not a whole STEP. */
static __attribute__((noinline)) void encode_rest(const uint16_t *x, size_t n, float scale, uint8_t *codes)
{
    uint16_t padded[STEP] = {0};
    uint8_t all[STEP];
    memcpy(padded, x, n * sizeof *x);
    encode_by_division(padded, STEP, scale, all);
    memcpy(codes, all, n);
}

/* Encodes one row of a block, and measures its error unless m is NULL. */
ALWAYS_INLINE void encode_row(const uint16_t *x, size_t n, const table *t, uint8_t *codes, measured *m, size_t row)
{
    const size_t whole = n - n % STEP;
    for (size_t i = 0; i < whole; i += SEGMENT) {
        const size_t width = whole - i < SEGMENT ? whole - i : SEGMENT;
        const bool normal = encode_steps(x + i, width, t, codes + i);
        if (m != NULL && __builtin_expect(normal, 1))
            measure_steps(m, x + i, codes + i, width, (known){true, true, true, true}, row, i);
        else if (m != NULL)
            measure_any_bf16(m, x + i, codes + i, width, row, i);
    }
    if (whole == n)
        return;
    encode_rest(x + whole, n - whole, t->scale, codes + whole);
    if (m != NULL)
        measure_any_bf16(m, x + whole, codes + whole, n - whole, row, whole);
}

/* Like encode_row, for a last block of a band that is narrower. */
static __attribute__((noinline)) void encode_ragged_row(const uint16_t *x, size_t n, const table *t, uint8_t *codes,
                                                        measured *m, size_t row)
{
    if (m != NULL)
        encode_row(x, n, t, codes, m, row);
    else
        encode_row(x, n, t, codes, NULL, row);
}

ALWAYS_INLINE void encode_band(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                               const float *scales, uint8_t *codes, size_t ld_codes)
{
    for (size_t col = 0; col < cols; col += block_cols) {
        const table t = make_table(*scales++);
        for (size_t row = 0; row < rows; row++)
            encode_row(x + row * ld + col, block_width(cols, col, block_cols), &t, codes + row * ld_codes + col, NULL,
                       row);
    }
}

/* ---- all in one pass ----
 *
 * Finding amax waits for memory, and making codes waits for arithmetic. So each row of a group of blocks is encoded
 * while the same row of the next group is searched, and one hides the other. The number of blocks and the prefetch
 * distance were the best on two machines. */
typedef struct band {
    const uint16_t *x;
    size_t rows, cols, ld;
    bool power_of_two;
    uint8_t *codes;
    size_t ld_codes;
    tsr_block_error *errors; /* NULL: not requested */
} band;

/* Raises found[i] to the magnitudes in one row of the i-th of some blocks. */
ALWAYS_INLINE void search_row(const uint16_t *x, size_t cols, size_t block_cols, vec found[GROUP])
{
    for (size_t col = 0, i = 0; col < cols; col += block_cols, i++)
        found[i] = amax_row(found[i], x + col, block_width(cols, col, block_cols));
}

/* Ends the measure of the block that begins at column `first`. */
static __attribute__((noinline)) void finish(const band *b, size_t first, size_t cols, float scale, const measured *m,
                                             tsr_block_error *error)
{
    const error_input in = {b->x + first, b->rows, cols, b->ld, b->codes + first, b->ld_codes};
    if (m->k == 1)
        finish_block(m, &in, true, error);
    else if (!measure_block(&in, true, scale, error)) /* in the single pass only numbers of usual size are measured */
        *error = (tsr_block_error){0};
}

/* Always inlined, so that a constant `block_cols` unrolls the rows of blocks. */
ALWAYS_INLINE void quantize_blocks(const band *b, size_t block_cols, bool measures, uint32_t *amax, float *scales)
{
    const size_t step = GROUP * block_cols;
    vec found[GROUP]; /* magnitudes of the next group */
    for (size_t i = 0; i < GROUP; i++)
        found[i] = v_zero();
    for (size_t row = 0; row < b->rows; row++) {
        prefetch_read(b->x + (row + 2 * ROWS_AHEAD) * b->ld, block_width(b->cols, 0, step) * sizeof *b->x);
        search_row(b->x + row * b->ld, block_width(b->cols, 0, step), block_cols, found);
    }
    for (size_t first = 0, at = 0; first < b->cols; first += step, at += GROUP) {
        const size_t width = block_width(b->cols, first, step), next = first + width;
        const size_t next_width = block_width(b->cols, next, step);
        table tables[GROUP];
        measured sums[GROUP];
        for (size_t col = 0, i = 0; col < width; col += block_cols, i++) {
            amax[at + i] = v_largest16(found[i]) << 16;
            scales[at + i] = tsr_e4m3_scale(amax[at + i], b->power_of_two);
            tables[i] = make_table(scales[at + i]);
            if (measures)
                begin_block(&sums[i], scales[at + i]);
            found[i] = v_zero();
        }
        for (size_t row = 0; row < b->rows; row++) {
            const uint16_t *const x = b->x + row * b->ld;
            uint8_t *const codes = b->codes + row * b->ld_codes + first;
            prefetch_read(x + ROWS_AHEAD * b->ld + next, next_width * sizeof *x);
            prefetch_write(codes + ROWS_AHEAD * b->ld_codes, width);
            for (size_t col = 0, i = 0; col < width; col += block_cols, i++) {
                measured *const m = measures ? &sums[i] : NULL;
                if (width - col >= block_cols)
                    encode_row(x + first + col, block_cols, &tables[i], codes + col, m, row);
                else
                    encode_ragged_row(x + first + col, width - col, &tables[i], codes + col, m, row);
                if (col + block_cols <= next_width)
                    found[i] = amax_row(found[i], x + next + col, block_cols);
                else if (col < next_width)
                    found[i] = amax_row(found[i], x + next + col, next_width - col);
            }
        }
        for (size_t col = 0, i = 0; measures && col < width; col += block_cols, i++)
            finish(b, first + col, block_width(width, col, block_cols), scales[at + i], &sums[i], &b->errors[at + i]);
    }
}

ALWAYS_INLINE void quantize_band(const band *b, size_t block_cols, uint32_t *amax, float *scales)
{
    if (block_cols == 128 && b->errors == NULL)
        quantize_blocks(b, 128, false, amax, scales);
    else if (block_cols == 128)
        quantize_blocks(b, 128, true, amax, scales);
    else if (b->errors == NULL)
        quantize_blocks(b, block_cols, false, amax, scales);
    else
        quantize_blocks(b, block_cols, true, amax, scales);
}

/* ---- entry points ---- */

void TSR_BLOCK_FP8(encode_e4m3_bf16)(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                     const float *scales, uint8_t *codes, size_t ld_codes)
{
    encode_band(x, rows, cols, ld, block_cols, scales, codes, ld_codes);
}

void TSR_BLOCK_FP8(quantize_e4m3_bf16)(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                       bool power_of_two, uint32_t *amax, float *scales, uint8_t *codes,
                                       size_t ld_codes, tsr_block_error *errors)
{
    const band b = {x, rows, cols, ld, power_of_two, codes, ld_codes, errors};
    quantize_band(&b, block_cols, amax, scales);
}
