/* One tensor looked at from all sides in a single pass: its values, its codes, and where in it they are large.
 *
 * Values are what a reader gets: code times scale where there is one. Memory is bounded: a piece of at most a million
 * elements is held at a time. */
#ifndef TSR_VERIFY_SURVEY_HISTOGRAM_H
#define TSR_VERIFY_SURVEY_HISTOGRAM_H

#include "common/block.h"
#include "formats/weights/weights.h"

enum {
    TSR_FIRST_VALUES = 8,
    TSR_MAP_ROWS = 32,
    TSR_MAP_COLS = 64,
    TSR_GRID_CELLS = 256, /* down and wide, where a block is a single element */
    TSR_BINADES = 2048,   /* of double: bin i holds 2^(i - 1023) <= |x| < 2^(i - 1022) */
};

typedef struct tsr_histogram {
    uint64_t elements;
    uint64_t zeros, negative, nan, inf;
    uint64_t subnormal; /* of the dtype that is stored: codes for F8_E4M3 */
    double min, max;    /* of the finite values; 0 when there is none */
    double amax, mean, rms;
    double first[TSR_FIRST_VALUES];
    unsigned n_first;
    uint64_t binades[2][TSR_BINADES]; /* finite values other than 0: positive, negative */
    uint64_t codes[256];              /* F8_E4M3 only */
    /* The largest |x| of each block, blocks taken together where there are more than cells. A stack is one tall matrix.
     * Row-major, map_rows x map_cols. NaN and Inf are left out. */
    tsr_block block;
    uint64_t blocks_down, blocks_wide; /* how many blocks there are */
    unsigned map_rows, map_cols;
    double map[TSR_GRID_CELLS * TSR_GRID_CELLS];
} tsr_histogram;

/* Computes a histogram and a map. `block` is the size of a map cell; 0 x 0: the weight's own blocks, or 128 x 128 if it has
 * none. With 1 x 1 blocks the map has up to TSR_GRID_CELLS rows and columns, otherwise up to TSR_MAP_ROWS and TSR_MAP_COLS.
 * TSR_E_UNSUPPORTED: complex, sub-byte, and 8-bit floats other than e4m3 and e8m0. */
tsr_status tsr_histogram_run(tsr_histogram *histogram, const tsr_checkpoint *checkpoint, const tsr_weight *weight,
                             tsr_block block, tsr_err *err) TSR_WARN_UNUSED;

/* e4m3 codes of magnitude `code` (0..0x7F), both signs. */
uint64_t tsr_histogram_codes(const tsr_histogram *histogram, unsigned code);

#endif
