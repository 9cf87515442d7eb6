/* Quantization statistics of a tensor, summed while it is quantized. */
#pragma once

#include "common/text.h"
#include "kernels/cpu/int_quant.h"

#include <stdbool.h>
#include <stdint.h>

/* x is a source element, and y = value(code) * scale is its decoded value. All zeros mean an empty tensor. The struct
 * has no padding and no pointers, because the journal stores its bytes. */
typedef struct tsr_quant_stats {
    uint64_t elements;
    uint64_t nonzero;      /* x != 0 */
    uint64_t saturated;    /* |x / scale| is larger than any value that rounds to the largest code, so it was clamped */
    uint64_t flushed;      /* x != 0 and y == 0 */
    uint64_t blocks;       /* scales */
    uint64_t zero_blocks;  /* blocks of zeros */
    uint64_t max_error_at; /* flat index of the first element with the largest |x - y| */
    uint64_t worst_at;     /* flat index of the first element of the block with worst_mse; a block is the elements that
                            * share a scale */
    double worst_mse;      /* largest mean of (x - y)^2 over one block; 0 if there are no blocks */
    double sum_rms;        /* sum over the blocks of the root mean square of x in each */
    double sum_x2;         /* sum of x^2 */
    double sum_d2;         /* sum of (x - y)^2 */
    double sum_xy;         /* sum of x * y */
    double sum_y2;         /* sum of y^2 */
    double sum_wx2;        /* sum of w * x^2, where w is the importance of the column; 0 without data */
    double sum_wd2;        /* sum of w * (x - y)^2 */
    double output_d2;      /* GPTQ: sum over the rows of d^T H d, d = x - y: the squared error of outputs; 0 without */
    double nearest_d2;     /* GPTQ: the same if every x were rounded to the nearest code */
    double amax;           /* largest |x| */
    double max_error;      /* largest |x - y| */
    double scale_min;      /* smallest scale of blocks that are not zero; 0 if there are none */
    double scale_median;   /* the lower one for an even number */
    double scale_max;
} tsr_quant_stats;

/* Adds `more` to `total`, whose elements precede those of `more` in the tensor or checkpoint. Medians of scales cannot
 * be added and stay unchanged. */
void tsr_quant_stats_add(tsr_quant_stats *total, const tsr_quant_stats *more);

/* Adds one group of n elements that share `scale`, starting at `first`: its amax, and its errors in units of the
 * scale. Returns true if it has the largest error so far; the caller must then set its position, max_error_at. */
bool tsr_quant_stats_add_group(tsr_quant_stats *total, const tsr_int_error *error, float scale, float amax, uint64_t n,
                               uint64_t first);

/* Adds the weighted sums of n elements; w[i] is the importance of the column of x[i]. The sums of eight interleaved
 * parts are added in order, so that all instruction sets give the same bits. */
void tsr_quant_stats_add_weighted(tsr_quant_stats *stats, const float *x, const float *y, const float *w, uint64_t n);

/* Fills scale_min, scale_median and scale_max from the `n` scales of a tensor, which are sorted in place. Zero blocks
 * have a scale of exactly 1; as many scales of 1 are left out as the statistics count zero blocks. */
void tsr_quant_stats_scales(tsr_quant_stats *stats, float *scales, uint64_t n);

/* Returns ||x - y|| / ||x||; 0 for an all-zero tensor. */
double tsr_quant_stats_relative_error(const tsr_quant_stats *stats);

/* Returns 10 log10(sum x^2 / sum (x - y)^2) in dB; infinite if there is no error. */
double tsr_quant_stats_sqnr(const tsr_quant_stats *stats);

/* Returns 10 log10(sum w x^2 / sum w (x - y)^2) in dB; infinite if there is no error. Only for
 * stats with sum_wx2 > 0. */
double tsr_quant_stats_weighted_sqnr(const tsr_quant_stats *stats);

/* Returns 10 log10(nearest_d2 / output_d2) in dB: what GPTQ took from the error of outputs on the text of calibration.
 * Only for stats with output_d2 > 0. */
double tsr_quant_stats_gptq_gain(const tsr_quant_stats *stats);

/* Returns sum xy / (||x|| ||y||); 1 for an all-zero tensor, 0 if every y is 0 and some x is not. */
double tsr_quant_stats_cosine(const tsr_quant_stats *stats);

/* Returns the root of worst_mse divided by the mean over the nonzero blocks of the root mean square of x: the noise in
 * the worst block relative to the values of an average block. It shows an outlier that makes the scale so large that
 * the other values of its block are lost. SQNR does not show that, because the outlier's own energy outweighs them. 0
 * for an all-zero tensor. */
double tsr_quant_stats_worst_block(const tsr_quant_stats *stats);

/* Appends the members of a JSON object (docs/report.md): counts, errors, scales. */
void tsr_quant_stats_json(tsr_text *text, const tsr_quant_stats *stats);
