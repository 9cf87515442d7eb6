/* Tests decoding of rectangles of a block FP8 weight at any offset against one product at a time. */
#include "common/checked.h"
#include "common/float_bits.h"
#include "quantize/fp8_decode.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { ROWS = 20, COLS = 300, BLOCK_ROWS = 8, BLOCK_COLS = 64, GRID_ROWS = 3, GRID_COLS = 5 };

Test(fp8_decode, rectangles_have_the_scales_of_their_blocks)
{
    static const tsr_tensor data = {.name = "w", .dtype = TSR_F8_E4M3, .rank = 2, .shape = {ROWS, COLS}};
    static const tsr_weight weight = {.data = &data,
                                      .values = &data,
                                      .scale = &data,
                                      .coding = TSR_CODED_E4M3,
                                      .scale_dtype = TSR_F32,
                                      .matrices = 1,
                                      .rows = ROWS,
                                      .cols = COLS,
                                      .block = {BLOCK_ROWS, BLOCK_COLS},
                                      .grid_rows = GRID_ROWS,
                                      .grid_cols = GRID_COLS};
    static uint8_t codes[ROWS * COLS];
    static float scales[GRID_ROWS * GRID_COLS], out[ROWS * COLS];
    tsr_cpu_kernels kernels;
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
    void *const scratch = malloc(tsr_fp8_decode_scratch(&weight));
    cr_assert_not_null(scratch);
    for (size_t i = 0; i < ROWS * COLS; i++)
        codes[i] = (uint8_t)(random_bits() % 0x7F);
    for (size_t i = 0; i < GRID_ROWS * GRID_COLS; i++)
        scales[i] = (float)(i + 1);
    for (int trial = 0; trial < 2000; trial++) {
        const uint64_t row = random_bits() % ROWS, col = random_bits() % COLS;
        tsr_fp8_rect rect = {.weight = &weight,
                             .row = row,
                             .col = col,
                             .rows = 1 + random_bits() % (ROWS - row),
                             .cols = 1 + random_bits() % (COLS - col),
                             .codes = codes + row * COLS + col,
                             .ld_codes = COLS};
        uint64_t first, n;
        tsr_err err = {0};
        tsr_fp8_rect_grid(&rect, &first, &n);
        cr_assert_eq(first, row / BLOCK_ROWS);
        cr_assert_eq(first + n, tsr_ceil_div(row + rect.rows, BLOCK_ROWS));
        rect.scales = scales + first * GRID_COLS;
        cr_assert_eq(tsr_fp8_decode(&kernels, &rect, TSR_F32, out, rect.cols, scratch, &err), TSR_OK, "%s", err.msg);
        for (uint64_t r = 0; r < rect.rows; r++) {
            for (uint64_t c = 0; c < rect.cols; c++) {
                const float scale = scales[(row + r) / BLOCK_ROWS * GRID_COLS + (col + c) / BLOCK_COLS];
                cr_assert_eq(out[r * rect.cols + c], tsr_e4m3_to_f32(codes[(row + r) * COLS + col + c]) * scale,
                             "trial %d: [%zu, %zu] of the rectangle at [%zu, %zu]", trial, (size_t)r, (size_t)c,
                             (size_t)row, (size_t)col);
            }
        }
    }
    free(scratch);
}
