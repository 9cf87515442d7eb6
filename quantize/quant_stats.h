/* What quantizing a tensor cost, summed as it is done. */
#ifndef TSR_QUANTIZE_QUANT_STATS_H
#define TSR_QUANTIZE_QUANT_STATS_H

#include "common/text.h"

#include <stdint.h>

/* x is a source element, y = value(code) * scale what a reader gets back. Zero-initialised is an empty tensor.
 * No padding and no pointers: the journal keeps these bytes as they are. */
typedef struct tsr_quant_stats {
    uint64_t elements;
    uint64_t nonzero;      /* x != 0 */
    uint64_t saturated;    /* |x / scale| beyond what rounds to the largest code: clamping cost something */
    uint64_t flushed;      /* x != 0 and y == 0 */
    uint64_t blocks;       /* scales */
    uint64_t zero_blocks;  /* blocks of zeros only */
    uint64_t max_error_at; /* flat index of the element with the largest |x - y|: the first, should there be several */
    uint64_t worst_at;     /* flat index of the first element of the block (what shares a scale) with worst_mse */
    double worst_mse;      /* the largest mean of (x - y)^2 over one block; 0 where there are no blocks */
    double sum_rms;        /* sum over the blocks of the root mean square of x in each */
    double sum_x2;         /* sum of x^2 */
    double sum_d2;         /* sum of (x - y)^2 */
    double sum_xy;         /* sum of x * y */
    double sum_y2;         /* sum of y^2 */
    double amax;           /* largest |x| */
    double max_error;      /* largest |x - y| */
    double scale_min;      /* of all blocks, zero blocks (scale 1) left out; 0 when there is no other */
    double scale_median;   /* the lower one of an even number */
    double scale_max;
} tsr_quant_stats;

/* Adds `more` to `total`, which stands before it in the tensor (or in the checkpoint). Scale medians do not add up and
 * are left alone. */
void tsr_quant_stats_add(tsr_quant_stats *total, const tsr_quant_stats *more);

/* Fills scale_min, scale_median and scale_max from the `n` scales of a tensor, which are sorted in place. Scales of
 * zero blocks, of which the statistics know the number, are exactly 1 and that many of them are left out. */
void tsr_quant_stats_scales(tsr_quant_stats *stats, float *scales, uint64_t n);

/* ||x - y|| / ||x||; 0 for an all-zero tensor. */
double tsr_quant_stats_relative_error(const tsr_quant_stats *stats);

/* 10 log10(sum x^2 / sum (x - y)^2) in dB; infinite when nothing was lost. */
double tsr_quant_stats_sqnr(const tsr_quant_stats *stats);

/* sum xy / (||x|| ||y||); 1 for an all-zero tensor, 0 when nothing else is left of x than zeros. */
double tsr_quant_stats_cosine(const tsr_quant_stats *stats);

/* The root of worst_mse over the mean of the blocks' root mean squares of x, those of zeros left out: what noise one
 * block has, beside what values the blocks of the tensor have. An outlier shows here, for whose sake all others of its
 * block are lost; it does not in SQNR, where its own energy outweighs them. 0 for an all-zero tensor. */
double tsr_quant_stats_worst_block(const tsr_quant_stats *stats);

/* Appends the members of a JSON object (docs/report.md): counts, errors, scales. */
void tsr_quant_stats_json(tsr_text *text, const tsr_quant_stats *stats);

#endif
