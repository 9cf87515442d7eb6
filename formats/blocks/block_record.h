/* Encodes and decodes the block statistics of one tensor (docs/blocks.md has the layout). */
#pragma once

#include "common/status.h"
#include "common/text.h"
#include "formats/blocks/block_codes.h"
#include "formats/blocks/block_map.h"

/* Statistics of a cell; each is the largest value of its blocks. */
typedef enum tsr_block_plane {
    TSR_BLOCK_ERROR, /* root mean square of x - y, divided by the mean over all nonzero blocks of the root mean square
                      * of x */
    TSR_BLOCK_SCALE, /* the factor that a code is multiplied by */
    TSR_BLOCK_AMAX,  /* |x| */
    TSR_BLOCK_PLANES
} tsr_block_plane;

/* Bins of a histogram of codes: bytes or nibbles, as stored in the file. */
typedef enum tsr_code_bins {
    TSR_BINS_E4M3 = 1,
    TSR_BINS_E2M1,
    TSR_BINS_INT8, /* two's complement */
    TSR_BINS_INT4  /* 4-bit two's complement */
} tsr_code_bins;

/* An element with a large error: x became y. */
typedef struct tsr_block_peak {
    uint64_t at; /* flat index */
    float x, y;
} tsr_block_peak;

enum {
    TSR_BLOCK_PEAKS = 8,
    TSR_CODE_BINS = 256,
    TSR_BLOCK_MOST_CELLS = 1 << 18, /* cells of a tensor */
    TSR_BLOCK_LONGEST_NAME = 65535,
};

typedef struct tsr_block_record {
    const char *name; /* not NUL-terminated */
    size_t name_size;
    tsr_block_map map;
    tsr_code_bins bins;
    double mean_rms; /* the mean that errors are divided by; 0: all blocks are zero */
    uint16_t base[TSR_BLOCK_PLANES];
    const uint8_t *planes[TSR_BLOCK_PLANES]; /* one byte per cell, row-major */
    uint64_t counted_rows;                   /* codes are counted in every n-th row; 1: in all rows */
    uint64_t counts[TSR_CODE_BINS];
    unsigned n_peaks; /* largest first; each is the largest of its block or, for groups of columns, of its row */
    tsr_block_peak peaks[TSR_BLOCK_PEAKS];
} tsr_block_record;

/* Returns the number of bins: 256 or 16. */
unsigned tsr_code_bins_count(tsr_code_bins bins);

/* Returns the largest size of a record with this many cells. */
uint64_t tsr_block_record_bound(size_t name_size, uint64_t cells, tsr_code_bins bins);

void tsr_block_record_write(tsr_text *to, const tsr_block_record *record);

/* Parses a record; the result points into `data`. Everything is checked. TSR_E_FORMAT: the message has the byte offset
 * from `data`. */
tsr_status tsr_block_record_read(const uint8_t *data, size_t size, tsr_block_record *record, tsr_err *err);
