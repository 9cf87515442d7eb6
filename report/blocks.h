/* What quantization_blocks.zst says of the worst tensors of a report: maps that fit a page or a terminal. */
#ifndef TSR_REPORT_BLOCKS_H
#define TSR_REPORT_BLOCKS_H

#include "formats/blocks/block_record.h"
#include "report/report.h"

enum {
    TSR_BLOCKS_SHOWN = 2 * TSR_MOST_WORST,
    TSR_BLOCKS_SIDE = 64 /* cells of a map that is shown, along each side */
};

/* A map of which each cell has the largest of 2^more[] cells of the record. Rows of stacked matrices stand one below the
 * other. */
typedef struct tsr_shown_map {
    uint64_t rows, cols;           /* at most TSR_BLOCKS_SIDE each */
    uint64_t cell_rows, cell_cols; /* elements of a cell; at the edges it has what is left */
    uint8_t *planes[TSR_BLOCK_PLANES];
} tsr_shown_map;

typedef struct tsr_shown_blocks {
    uint32_t row;            /* of the result */
    bool folded;             /* a cell of the map stands for several blocks */
    tsr_block_record record; /* its planes and name are gone */
    tsr_shown_map map;
} tsr_shown_blocks;

/* Of a result. */
struct tsr_result_blocks {
    const char *why_not; /* why there are no maps, a sentence; NULL: there are */
    tsr_shown_blocks items[TSR_BLOCKS_SHOWN];
    size_t count;
};

/* Reads, beside each result that says that there is one, the file of its blocks, and keeps what it says of the tensors of
 * lowest SQNR and worst block. That it is missing, or another report's, is no failure. TSR_E_FORMAT: it is damaged; with the
 * byte. */
tsr_status tsr_report_read_blocks(tsr_report *report, tsr_err *err) TSR_WARN_UNUSED;

/* The same of bytes in memory, of which `path` tells the name. */
tsr_status tsr_blocks_take(tsr_result *result, const tsr_overview *overview, const char *path, const void *data,
                           size_t size, tsr_err *err) TSR_WARN_UNUSED;

/* The blocks of a row; NULL: they are not known. */
const tsr_shown_blocks *tsr_blocks_of(const tsr_result *result, uint32_t row);

/* "[12, 640]": the first element of a cell; and of an element by its flat index. Returns text. */
const char *tsr_cell_place(const tsr_shown_blocks *blocks, uint64_t row, uint64_t col, char text[96]);
const char *tsr_element_place(const tsr_block_map *map, uint64_t at, char text[96]);

/* "e4m3", "int4". Static storage. */
const char *tsr_code_bins_name(tsr_code_bins bins);

#endif
