/* Diagnoses a weight's scales: the error of each block, the factor that would correct it, the error with that factor, and from
 * all blocks the name of the fault. */
#ifndef TSR_VERIFY_COMPARE_BLOCK_SCAN_H
#define TSR_VERIFY_COMPARE_BLOCK_SCAN_H

#include "verify/values/weight_reader.h"

typedef enum tsr_scale_fault {
    TSR_SCALES_FIT,        /* no fault of the scales */
    TSR_SCALES_TRANSPOSED, /* the grid is stored column by column */
    TSR_SCALES_SHIFTED,    /* each scale is one block too early or too late */
    TSR_SCALES_INVERTED,   /* 1 / scale is stored */
    TSR_SCALES_MULTIPLIED, /* one factor is wrong with all of them, as a wrong global scale makes them */
    TSR_SCALES_SWAPPED,    /* two are wrong, and each fits the other's place */
    TSR_SCALES_WRONG,      /* codes fit, some scales do not, in none of these ways */
    TSR_ZEROS_WRONG,       /* codes and scales fit, some zero points do not */
    TSR_CODES_UNRELATED,   /* no scale makes these codes the source's values */
    TSR_NOT_SCANNED,       /* one block is more than TSR_SCAN_BYTES, or groups lie in another order */
} tsr_scale_fault;

/* Relative error that no distribution of weights explains: e4m3 gives 0.0265. */
#define TSR_USUAL_BLOCK_ERROR 0.032

enum {
    TSR_SCAN_BYTES = 16 << 20,
    TSR_SCAN_KEPT = 1 << 20, /* blocks of a matrix whose scales are kept, to find where the right scales are */
};

typedef struct tsr_block_scan {
    tsr_scale_fault fault;
    uint64_t blocks,
        wrong; /* wrong: scales off by more than 2 % (of 4-bit codes and small groups 20 %), or zero points */
    tsr_piece first_wrong, last_wrong;
    double factor;             /* stored / right of the first wrong one; of zero points, stored - right */
    uint64_t improvable;       /* blocks, worse than usual even if codes are the nearest, whose squared error amax / 448
                                  lowers by a fifth or more */
    tsr_piece most_improvable; /* and the one that gains most: */
    double error, better;      /* its relative error under the stored scale, and under amax / 448 */
    double cost; /* of integers: sum of d^2 / sum of step^2 / 12, with the steps that reach each block's largest value;
                    at most 3 where every code is the nearest under such steps. 0: not known */
} tsr_block_scan;

/* `y` has scales; `x` has its shape and is the reference. Least squares gives each block's factor: sum xy / sum y^2.
 * `powers`: scales have to be powers of two, and a better one is the next above amax / 448. */
tsr_status tsr_scan_blocks(const tsr_view *x, const tsr_view *y, bool powers, tsr_block_scan *scan,
                           tsr_err *err) TSR_WARN_UNUSED;

#endif
