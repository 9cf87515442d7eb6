/* Tests block maps in reports: each cell of a record is in the right cell of the map, and stacked matrices are one
 * below the other. */
#include "formats/blocks/block_file.h"
#include "report/blocks.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const char kReport[] =
    "{\"schema\":\"tessera-quantization-report/1\",\"version\":\"0\",\"command\":\"c\",\"tensors\":"
    "[{\"name\":\"a.weight\",\"sqnr_db\":20,\"worst_block_error\":0.5}],\"whole\":{}}";

/* Makes the report of a tensor with this map. The only cell that is not 1 is `at`, in all planes. */
static void show(tsr_report *report, const tsr_block_map *map, uint64_t at)
{
    const uint64_t cells = tsr_block_map_cells(map);
    uint8_t *const plane = malloc(cells);
    memset(plane, 1, cells);
    plane[at] = 200;
    const tsr_block_record r = {.name = "a.weight",
                                .name_size = 8,
                                .map = *map,
                                .bins = TSR_BINS_E2M1,
                                .mean_rms = 1,
                                .planes = {plane, plane, plane},
                                .counted_rows = 1};
    tsr_text record = {0}, file = {0};
    tsr_err err;
    tsr_block_record_write(&record, &r);
    cr_assert_eq(tsr_blocks_add_header(&file, 1, NULL), TSR_OK);
    cr_assert_eq(tsr_blocks_add_frame(&file, record.data, record.size, NULL), TSR_OK);
    cr_assert_eq(tsr_report_of_text(report, "r.json", kReport, sizeof kReport - 1, NULL), TSR_OK);
    cr_assert_eq(tsr_blocks_take(&report->results[0], &report->overviews[0], "x.zst", file.data, file.size, &err),
                 TSR_OK, "%s", err.msg);
    free(plane);
    tsr_text_free(&record);
    tsr_text_free(&file);
}

/* Maps each cell to the elements where it is shown, with rows counted through all matrices. */
static void check(const tsr_block_map *map, uint64_t rows, uint64_t cols, const char *first, const char *last)
{
    const uint64_t cells = tsr_block_map_cells(map), wide = tsr_block_map_extent(map, 2),
                   tall = tsr_block_map_extent(map, 1);
    for (uint64_t at = 0; at<cells; at += cells> 500 ? 37 : 1) {
        tsr_report report;
        char text[96];
        show(&report, map, at);
        const tsr_shown_blocks *const b = tsr_blocks_of(&report.results[0], 0);
        cr_assert(b != NULL && b->map.rows == rows && b->map.cols == cols);
        const uint64_t matrix = at / wide / tall << map->fold[0], band = at / wide % tall;
        const uint64_t row = matrix * map->shape[1] + (band * map->block[1] << map->fold[1]);
        const uint64_t col = at % wide * map->block[2] << map->fold[2];
        const uint64_t cell = row / b->map.cell_rows * cols + col / b->map.cell_cols;
        for (uint64_t i = 0; i < rows * cols; i++) {
            for (unsigned p = 0; p < TSR_BLOCK_PLANES; p++)
                cr_assert_eq(b->map.planes[p][i], i == cell ? 200 : 1, "cell %zu, shown at %zu", (size_t)at, (size_t)i);
        }
        cr_expect_str_eq(tsr_cell_place(b, 0, 0, text), first);
        cr_expect_str_eq(tsr_cell_place(b, rows - 1, cols - 1, text), last);
        tsr_report_free(&report);
    }
}

Test(shown_blocks, a_matrix_as_it_is)
{
    check(&(tsr_block_map){.shape = {1, 300, 640}, .block = {1, 128, 128}}, 3, 5, "[0, 0]", "[256, 512]");
}

Test(shown_blocks, a_large_one_is_folded_further)
{
    check(&(tsr_block_map){.shape = {1, 260, 2064}, .block = {1, 1, 16}, .fold = {0, 1, 0}}, 33, 33, "[0, 0]",
          "[256, 2048]");
}

Test(shown_blocks, matrices_below_one_another)
{
    check(&(tsr_block_map){.shape = {3, 256, 256}, .block = {1, 128, 128}}, 6, 2, "[0, 0, 0]", "[2, 128, 128]");
}

Test(shown_blocks, ragged_matrices_have_a_row_of_cells_each)
{
    check(&(tsr_block_map){.shape = {3, 300, 256}, .block = {1, 128, 128}}, 3, 2, "[0, 0, 0]", "[2, 0, 128]");
    check(&(tsr_block_map){.shape = {5, 300, 256}, .block = {1, 128, 128}, .fold = {1, 2, 1}}, 3, 1, "[0, 0, 0]",
          "[4, 0, 0]");
}
