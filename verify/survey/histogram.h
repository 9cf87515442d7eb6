/* Histogram, code counts and map of large values of one tensor, computed in a single pass.
 *
 * Values are decoded: code times scale if there is one. Memory is limited to a piece of at most a million elements. */
#pragma once

#include "common/block.h"
#include "formats/weights/weights.h"

enum {
    TSR_FIRST_VALUES = 8,
    TSR_MAP_ROWS = 32,
    TSR_MAP_COLS = 64,
    TSR_GRID_CELLS = 256, /* most rows and columns of the map if a block is a single element */
    TSR_BINADES = 2048,   /* exponents of double: bin i holds 2^(i - 1023) <= |x| < 2^(i - 1022) */
};

typedef struct tsr_histogram {
    uint64_t elements;
    uint64_t zeros, negative, nan, inf;
    uint64_t subnormal; /* in the stored dtype: codes for F8_E4M3 */
    double min, max;    /* range of the finite values; 0 if there are none */
    double amax, mean, rms;
    double first[TSR_FIRST_VALUES];
    unsigned n_first;
    uint64_t binades[2][TSR_BINADES]; /* finite nonzero values: positive, negative */
    uint64_t codes[256];              /* F8_E4M3 only */
    /* The largest |x| of each block; several blocks share a cell if there are more blocks than cells. A stack is one
     * tall matrix. Row-major, map_rows x map_cols. NaN and Inf are left out. */
    tsr_block block;
    uint64_t blocks_down, blocks_wide; /* number of blocks */
    unsigned map_rows, map_cols;
    double map[TSR_GRID_CELLS * TSR_GRID_CELLS];
} tsr_histogram;

/* Computes a histogram and a map. `block` is the size of a map cell; 0 x 0: the weight's own blocks, or 128 x 128 if it
 * has none. With 1 x 1 blocks the map has up to TSR_GRID_CELLS rows and columns, otherwise up to TSR_MAP_ROWS and
 * TSR_MAP_COLS. TSR_E_UNSUPPORTED: complex, sub-byte, and 8-bit floats other than e4m3 and e8m0. */
tsr_status tsr_histogram_run(tsr_histogram *histogram, const tsr_checkpoint *checkpoint, const tsr_weight *weight,
                             tsr_block block, tsr_err *err);

/* Returns the number of e4m3 codes of magnitude `code` (0..0x7F), of both signs. */
uint64_t tsr_histogram_codes(const tsr_histogram *histogram, unsigned code);
