/* Error metrics of values y against reference values x, with coordinates. Sums are in double.
 *
 * Pairs with a NaN or Inf are counted and located, and left out of the sums, so that one bad value does not hide the
 * others. A pair that is not the same Inf twice or NaN twice differs, and makes the largest error infinite.
 *
 * The sums depend only on the order of tsr_tile_row and tsr_metrics_add: each tile has 8 partial sums (column % 8),
 * added in order. They do not depend on the instruction set. The same order gives the same bits for any number of
 * threads. */
#pragma once

#include "common/text.h"

#include <stddef.h>
#include <stdint.h>

/* Errors are located in tiles of this many rows and columns, the usual block size of scales. */
enum { TSR_TILE = 128, TSR_WORST_TILES = 5 };

typedef struct tsr_tile_metrics {
    uint64_t matrix, row, col; /* position of the corner */
    uint32_t rows, cols;
    uint64_t differ;
    double relative; /* |x - y| / |x| of this tile */
    double max_abs;
} tsr_tile_metrics;

/* Zero-initialized: nothing compared. Flat indices count elements of the view, row by row. */
typedef struct tsr_metrics {
    uint64_t elements;
    uint64_t differ;          /* x != y as numbers; -0 equals 0 */
    uint64_t nonfinite[2];    /* number of NaN or Inf in x, and in y */
    uint64_t nonfinite_at[2]; /* flat index of the first one */
    uint64_t max_abs_at;      /* flat index of the largest error: the first in its tile, and the earliest tile */
    uint64_t misrounded;      /* y has scales, and its code is not the nearest to x: see tsr_weight_reader_misrounded */
    uint64_t misrounded_at;   /* flat index of the first one in the first piece that has any */
    uint64_t misscaled;       /* groups of y whose scale is worse than the rule's: see tsr_group_is_misscaled */
    uint64_t misscaled_at;    /* flat index of the first value of such a group */
    double sum_x2, sum_y2, sum_xy;
    double sum_d2;  /* sum of (x - y)^2 */
    double max_abs; /* largest |x - y| */
    size_t n_worst;
    tsr_tile_metrics worst[TSR_WORST_TILES]; /* tiles that differ, by falling relative error */
} tsr_metrics;

/* A tile while rows are added. */
typedef struct tsr_tile {
    double sums[4][8]; /* sums of x^2, y^2, xy, d^2, eight partial sums each */
    int64_t differ[8];
    uint64_t index, ld;     /* flat index of the corner; distance of rows in the view */
    tsr_tile_metrics place; /* corner and size; at most TSR_TILE columns */
    tsr_metrics found;      /* all metrics except the sums */
} tsr_tile;

/* Starts a tile at `place` (corner and size) of matrices of `rows` x `ld`. */
void tsr_tile_begin(tsr_tile *tile, const tsr_tile_metrics *place, uint64_t rows, uint64_t ld);

/* Adds one row of the tile; rows must come in order. x and y have place.cols elements and may be the same array. */
void tsr_tile_row(tsr_tile *tile, uint32_t row, const double *x, const double *y);

/* Adds the finished tile to `total`. */
void tsr_tile_end(const tsr_tile *tile, tsr_metrics *total);

/* Adds `more`, which follows `total`. For a sum over tensors, indices and tiles have no meaning. */
void tsr_metrics_add(tsr_metrics *total, const tsr_metrics *more);

/* Returns |x - y| / |x|, Frobenius. 0 if nothing differs; infinite if x is all zero and y is not, or max_abs is
 * infinite. */
double tsr_metrics_relative(const tsr_metrics *m);
/* Returns 10 log10(sum x^2 / sum (x - y)^2) in dB; infinite if nothing differs. */
double tsr_metrics_sqnr(const tsr_metrics *m);
/* Returns sum xy / (|x| |y|): 1 if both are zero, 0 if one is. */
double tsr_metrics_cosine(const tsr_metrics *m);
/* Returns DeepGEMM's measure, 1 - 2 sum xy / sum (x^2 + y^2), computed without cancellation: sum (x - y)^2 over the
 * same denominator. */
double tsr_metrics_calc_diff(const tsr_metrics *m);
