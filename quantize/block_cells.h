/* Collects statistics of the blocks of a tensor while it is quantized: error, scale and amax of each block, counts of
 * codes, and the largest errors.
 *
 * Several threads work on one tensor, and a cell may have blocks from two of them. All statistics are maxima or counts,
 * so the result does not depend on the order. */
#pragma once

#include "formats/blocks/block_record.h"
#include "kernels/cpu/cpu.h"
#include "quantize/quant_stats.h"

#include <pthread.h>

/* A large error, ordered by error, then by position. */
typedef struct tsr_block_error_at {
    double error; /* |x - y| */
    tsr_block_peak peak;
} tsr_block_error_at;

typedef struct tsr_block_peaks {
    tsr_block_error_at items[TSR_BLOCK_PEAKS]; /* the largest first */
    unsigned n;
} tsr_block_peaks;

/* The cells of one tensor, shared by threads. */
typedef struct tsr_block_cells {
    tsr_block_map map;
    tsr_code_bins bins;
    uint64_t n;                         /* cells */
    uint64_t counted_rows;              /* codes are counted in every n-th row */
    pthread_mutex_t lock;               /* guards all following members */
    uint32_t *planes[TSR_BLOCK_PLANES]; /* [n] each: the bits of floats; 0 in all three: only zeros */
    uint64_t counts[TSR_CODE_BINS];
    tsr_block_peaks peaks;
} tsr_block_cells;

/* Bytes are counted in several tables in turn, so that a run of equal bytes causes no dependency. */
enum { TSR_BLOCK_TABLES = 4 };

/* The statistics of one unit of work: its counts and peaks, and the tensor's cells. */
typedef struct tsr_block_notes {
    tsr_block_cells *cells;
    tsr_block_peaks peaks;
    double least; /* smaller errors are not among the largest, because other units have found enough larger ones */
    bool pairs;   /* a counted byte holds two codes */
    uint32_t counts[TSR_BLOCK_TABLES][256];
} tsr_block_notes;

/* Returns the bytes that tsr_block_cells_begin allocates. */
uint64_t tsr_block_cells_bytes(const tsr_block_map *map);

/* Allocates all cells, set to 0. Returns false when memory is exhausted. */
bool tsr_block_cells_begin(tsr_block_cells *cells, const tsr_block_map *map, tsr_code_bins bins);

void tsr_block_cells_free(tsr_block_cells *cells);

/* Initializes the notes of a unit. */
void tsr_block_notes_begin(tsr_block_notes *notes, tsr_block_cells *cells);

/* Adds a unit's counts and peaks. */
void tsr_block_cells_add(tsr_block_cells *cells, const tsr_block_notes *notes);

/* Appends the tensor's record. `stats` are the statistics of the whole tensor. */
tsr_status tsr_block_cells_write(const tsr_block_cells *cells, const char *name, const tsr_quant_stats *stats,
                                 tsr_text *to, tsr_err *err);

/* ---- noting ---- */

/* The cells of one row of blocks: block g is in cell first + (g >> fold). */
typedef struct tsr_block_line {
    uint64_t first;
    unsigned fold;
} tsr_block_line;

/* Returns the line of a row of elements, numbered through all matrices. Its value is unused if notes is NULL. */
tsr_block_line tsr_block_line_of(const tsr_block_notes *notes, uint64_t row);

/* Records block `block` of the row of blocks: the root mean square of its error, its scale, and the bits of amax. */
void tsr_block_note(tsr_block_notes *notes, tsr_block_line line, uint64_t block, double rms, float scale,
                    uint32_t amax_bits);

/* Statistics of the groups of rows that share a line, until they are recorded together. */
typedef struct tsr_block_band {
    tsr_group_max tops;
    uint64_t n; /* groups per row */
    float each; /* factor that makes a group's error its root mean square */
    tsr_block_line line;
    bool begun;
} tsr_block_band;

/* Bytes of memory for a band. */
#define TSR_BLOCK_BAND_BYTES(n) (3 * sizeof(uint32_t) * (n))

tsr_block_band tsr_block_band_of(void *memory, uint64_t n, float each);

/* Adds the groups of a row of elements, numbered through all matrices. Rows must come in order. e2, t and amax are as
 * in kernels/cpu/group_max.h. Groups of another line of the band are recorded first. */
void tsr_block_band_add(tsr_block_notes *notes, tsr_block_band *band, const tsr_cpu_kernels *kernels, uint64_t row,
                        const float *e2, const float *t, const uint32_t *amax);

/* Records the contents of the band; with notes NULL it has none. */
void tsr_block_band_end(tsr_block_notes *notes, tsr_block_band *band);

/* Returns true if an error is among the unit's largest errors. Of equal errors the first ones are kept. */
static inline bool tsr_block_is_peak(const tsr_block_notes *notes, double error)
{
    const tsr_block_peaks *const p = &notes->peaks;
    return error > 0 && error >= notes->least &&
           (p->n < TSR_BLOCK_PEAKS || error > p->items[TSR_BLOCK_PEAKS - 1].error);
}

void tsr_block_note_peak(tsr_block_notes *notes, double error, uint64_t at, float x, float y);

/* Counts n bytes of codes of a row of elements, if codes of this row are counted. A byte holds one code, or two
 * (`pairs`, the same for the whole unit). */
void tsr_block_count(tsr_block_notes *notes, uint64_t row, const void *codes, size_t n, bool pairs);
