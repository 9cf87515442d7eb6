/* Judges a kernel by its elements: each error against its bound, their mean square against the expected one, and their
 * mean with sign against its standard error.
 *
 * The last comparison finds faults that the others miss: results that are all 0.1 % too large, or truncated instead of
 * rounded. It uses two means, with x the exact value, e the error and v its expected square. e does not include the
 * rounding of x to the type of the result: results close to numbers of that type, as of attention to one token, all
 * round in one direction.
 *
 * - slope: the factor d for which e = d x fits best, d = sum(e x / v) / sum(x^2 / v).
 * - offset: the mean of e / sqrt(v).
 *
 * With rounding to nearest both are 0 within their standard errors. These are computed in three ways, and the largest
 * is used: from v, as if errors were independent, where equal errors count as one (a repeated token; sums of a few
 * small integers); and from the scatter of the sums of whole rows and of whole columns around their mean. Few rows (or
 * columns) scatter by chance. With fewer than TSR_BIAS_CLUSTERS of them, if errors are shared along them, each counts
 * as one error.
 *
 * docs/verify-kernels.md has the limits and the rate of false alarms. */
#pragma once

#include "verify/evidence/jobs.h"

enum { TSR_BIAS_CLUSTERS = 32 };

/* Subject of a tally. */
typedef struct tsr_tally_of {
    const char *subject, *what;
    double seconds;    /* time of one run; 0: not measured */
    size_t rows, cols; /* size of the result; 0: its bias is not judged */
    tsr_out out;       /* its type. The rounding to 16 bits dominates all other errors */
    enum {
        TSR_SHARE_NOTHING,
        TSR_SHARE_ROWS,
        TSR_SHARE_COLS
    } shared;          /* the dimension along which one rounding affects
                        * many results */
    double systematic; /* the slope of correct kernels: tensor cores truncate their sums */
} tsr_tally_of;

/* Errors of one size, and their weight in a slope: the sum of |x| / sqrt(v). */
typedef struct tsr_bias_error {
    uint64_t key; /* leading bits of the size */
    double weight;
    size_t n;
} tsr_bias_error;

/* Squares of the standard errors of the sums for slope and offset. */
typedef struct tsr_bias_spread {
    double slope, offset;
} tsr_bias_spread;

/* Sums over one row or column. */
typedef struct tsr_bias_sums {
    double ex, xx, size; /* sums of e x / v, of x^2 / v, of |x| / sqrt(v) */
    double e;            /* sum of e / sqrt(v) */
    size_t n;
} tsr_bias_sums;

typedef struct tsr_kernel_tally {
    tsr_judgement judgement; /* the caller fills in the metrics of quantization */
    tsr_tally_of of;
    double sum;             /* sum of squared errors, each divided by its expected square */
    size_t n;               /* elements with a known expected square */
    tsr_bias_sums *sums;    /* [of.rows + of.cols] */
    tsr_bias_error *errors; /* [mask + 1]: hash table by `key` */
    size_t mask, distinct;
    tsr_bias_spread exact; /* spread of results without error */
} tsr_kernel_tally;

/* Starts a tally. Allocates only if the bias is judged; tsr_kernel_tally_end frees it. */
tsr_status tsr_kernel_tally_begin(tsr_kernel_tally *tally, const tsr_tally_of *of, tsr_err *err);

/* Adds element [row][col]. `variance` is the expected square of the error; 0: unknown. A NaN exceeds every bound. */
void tsr_kernel_tally_count(tsr_kernel_tally *tally, size_t row, size_t col, double exact, double got, double bound,
                            double variance);

/* Adds the judgement to the evidence. If it exceeds the limits and has no fault yet, sets one of these faults, or one
 * that describes its bias. */
tsr_status tsr_kernel_tally_end(tsr_kernel_tally *tally, const tsr_kernel_limits *limits, const char *fault,
                                const char *rms_fault, tsr_evidence *evidence, tsr_err *err);

/* Ends the tally with faults that state by how much the kernel exceeds the bound of `adder`, such as "FP32". */
tsr_status tsr_kernel_tally_end_by(tsr_kernel_tally *tally, const tsr_kernel_limits *limits, const char *adder,
                                   tsr_evidence *evidence, tsr_err *err);
