/* Block maps of the worst tensors of a report, from quantization_blocks.zst, reduced to fit a page or a terminal. */
#pragma once

#include "formats/blocks/block_record.h"
#include "report/report.h"

enum {
    TSR_BLOCKS_SHOWN = 2 * TSR_MOST_WORST,
    TSR_BLOCKS_SIDE = 64 /* most cells of a displayed map per side */
};

/* A reduced map. Each cell is the maximum of 2^more[] cells of the record. Rows of stacked matrices are
 * concatenated. */
typedef struct tsr_shown_map {
    uint64_t rows, cols;           /* at most TSR_BLOCKS_SIDE each */
    uint64_t cell_rows, cell_cols; /* elements per cell; less at the edges */
    uint8_t *planes[TSR_BLOCK_PLANES];
} tsr_shown_map;

typedef struct tsr_shown_blocks {
    uint32_t row;            /* row of the result */
    bool folded;             /* a cell of the map covers several blocks */
    tsr_block_record record; /* without planes and name */
    tsr_shown_map map;
} tsr_shown_blocks;

/* Block maps of one result. */
struct tsr_result_blocks {
    const char *why_not; /* reason for missing maps, as a sentence; NULL: there are maps */
    tsr_shown_blocks items[TSR_BLOCKS_SHOWN];
    size_t count;
};

/* Reads the blocks file of each result that refers to one, and keeps the maps of the tensors with the lowest SQNR
 * and the worst blocks. A missing file, or one of another report, is not a failure. TSR_E_FORMAT: it is damaged; the
 * message gives the byte. */
tsr_status tsr_report_read_blocks(tsr_report *report, tsr_err *err);

/* Like tsr_report_read_blocks, for one result and bytes in memory. `path` is the name in messages. */
tsr_status tsr_blocks_take(tsr_result *result, const tsr_overview *overview, const char *path, const void *data,
                           size_t size, tsr_err *err);

/* Returns the blocks of a row; NULL: unknown. */
const tsr_shown_blocks *tsr_blocks_of(const tsr_result *result, uint32_t row);

/* Write "[12, 640]": the position of a cell's first element, or of an element by its flat index. Return text. */
const char *tsr_cell_place(const tsr_shown_blocks *blocks, uint64_t row, uint64_t col, char text[96]);
const char *tsr_element_place(const tsr_block_map *map, uint64_t at, char text[96]);

/* Returns "e4m3", "int4", ... Static storage. */
const char *tsr_code_bins_name(tsr_code_bins bins);
