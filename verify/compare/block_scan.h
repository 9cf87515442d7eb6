/* Diagnoses a weight's scales: the error of each block, the factor that would correct it, the error with that factor
 * and, from all blocks, the name of the fault. */
#pragma once

#include "verify/values/weight_reader.h"

typedef enum tsr_scale_fault {
    TSR_SCALES_FIT,        /* the scales are right */
    TSR_SCALES_TRANSPOSED, /* the grid is stored column-major */
    TSR_SCALES_SHIFTED,    /* each scale is one block too early or too late */
    TSR_SCALES_INVERTED,   /* 1 / scale is stored */
    TSR_SCALES_MULTIPLIED, /* all scales are wrong by one factor, as with a wrong global scale */
    TSR_SCALES_SWAPPED,    /* two scales are swapped */
    TSR_SCALES_WRONG,      /* codes are right, some scales are wrong in another way */
    TSR_ZEROS_WRONG,       /* codes and scales are right, some zero points are wrong */
    TSR_CODES_UNRELATED,   /* no scale turns these codes into the source's values */
    TSR_NOT_SCANNED,       /* one block is larger than TSR_SCAN_BYTES, or groups have another order */
} tsr_scale_fault;

/* Relative error above that of any distribution of weights; that of e4m3 is 0.0265. */
#define TSR_USUAL_BLOCK_ERROR 0.032

enum {
    TSR_SCAN_BYTES = 16 << 20,
    TSR_SCAN_KEPT = 1 << 20, /* blocks of a matrix whose scales are kept, to locate the right ones */
};

typedef struct tsr_block_scan {
    tsr_scale_fault fault;
    uint64_t blocks,
        wrong; /* wrong: scales off by more than 2 % (20 % for 4-bit codes and small groups), or zero points */
    tsr_piece first_wrong, last_wrong;
    double factor;             /* stored / right of the first wrong scale; stored - right for zero points */
    uint64_t improvable;       /* blocks with more than the usual error although codes are the nearest, whose squared
                                * error amax / 448 would reduce by a fifth or more */
    tsr_piece most_improvable; /* the block with the largest improvement: */
    double error, better;      /* its relative error under the stored scale, and under amax / 448 */
    double cost; /* integers: sum of d^2 / sum of step^2 / 12, with the steps that reach each block's largest value; at
                  * most 3 if every code is the nearest under such steps. 0: unknown */
} tsr_block_scan;

/* Scans the weight. `y` has scales; `x` has its shape and is the reference. Least squares gives each block's factor:
 * sum xy / sum y^2. `powers`: scales must be powers of two, so a better one is the next above amax / 448. */
tsr_status tsr_scan_blocks(const tsr_view *x, const tsr_view *y, bool powers, tsr_block_scan *scan, tsr_err *err);
