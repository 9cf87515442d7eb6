/* Judges a kernel element by element: each error against its bound, their mean square against the expected one, and
 * their mean, with its sign, against its standard error.
 *
 * The last finds what the others let pass: results that are all 0.1 % too large, or truncated where they should be
 * rounded. Two means are looked at, with x the exact value, e the error and v its expected square:
 *
 * - slope: the factor d for which e = d x fits best, d = sum(e x / v) / sum(x^2 / v).
 * - offset: the mean of e / sqrt(v).
 *
 * Rounding to nearest leaves both at 0, but for their standard errors. Those are computed in three ways, and the largest
 * counts: from v, as if errors were independent, but equal ones a single error (a token that is there twice; sums of a few
 * small integers); and from how the sums of whole rows, and of whole columns, scatter around their mean. Too few
 * rows (or columns) scatter by chance: below TSR_BIAS_CLUSTERS of them, where the judge says that errors are shared along
 * them, each counts as one error.
 *
 * docs/verify-kernels.md has the limits and the rate of false alarms. */
#ifndef TSR_VERIFY_EVIDENCE_KERNEL_TALLY_H
#define TSR_VERIFY_EVIDENCE_KERNEL_TALLY_H

#include "verify/evidence/jobs.h"

enum { TSR_BIAS_CLUSTERS = 32 };

/* Subject of a tally. */
typedef struct tsr_tally_of {
    const char *subject, *what;
    double seconds;    /* of one run; 0: not timed */
    size_t rows, cols; /* of the result; 0: its bias is not judged */
    bool narrow;       /* it has 16 bits, so that rounding it outweighs everything else */
    enum { TSR_SHARE_NOTHING, TSR_SHARE_ROWS, TSR_SHARE_COLS } shared; /* along what one rounding moves many results */
    double systematic; /* the slope that sound kernels have: tensor cores truncate their sums */
} tsr_tally_of;

/* Errors of one size, and their weight in a slope: the sum of |x| / sqrt(v). */
typedef struct tsr_bias_error {
    uint64_t key; /* the size's leading bits */
    double weight;
    size_t n;
} tsr_bias_error;

/* Squares of the standard errors of a slope's and an offset's sums. */
typedef struct tsr_bias_spread {
    double slope, offset;
} tsr_bias_spread;

/* Sums over one row or column. */
typedef struct tsr_bias_sums {
    double ex, xx, size; /* of e x / v, of x^2 / v, of |x| / sqrt(v) */
    double e;            /* of e / sqrt(v) */
    size_t n;
} tsr_bias_sums;

typedef struct tsr_kernel_tally {
    tsr_judgement judgement; /* the caller fills in the figures of quantization */
    tsr_tally_of of;
    double sum;             /* of squared errors, each over its expected square */
    size_t n;               /* elements whose expected square is known */
    tsr_bias_sums *sums;    /* [of.rows + of.cols] */
    tsr_bias_error *errors; /* [mask + 1], a table by `key` */
    size_t mask, distinct;
    tsr_bias_spread exact; /* of results without an error */
} tsr_kernel_tally;

/* Starts a tally. Allocates only if the bias is judged; tsr_kernel_tally_end frees it. */
tsr_status tsr_kernel_tally_begin(tsr_kernel_tally *tally, const tsr_tally_of *of, tsr_err *err) TSR_WARN_UNUSED;

/* Adds element [row][col]. `variance`: the expected square of the error; 0: not known. A NaN is beyond any bound. */
void tsr_kernel_tally_count(tsr_kernel_tally *tally, size_t row, size_t col, double exact, double got, double bound,
                            double variance);

/* Adds the judgement to the evidence. If it is beyond the limits, it gets one of these faults, or one that tells its
 * bias, unless it has one. */
tsr_status tsr_kernel_tally_end(tsr_kernel_tally *tally, const tsr_kernel_limits *limits, const char *fault,
                                const char *rms_fault, tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

/* Ends the tally with faults that state by how much the kernel exceeds the bound of `adder`, "FP32". */
tsr_status tsr_kernel_tally_end_by(tsr_kernel_tally *tally, const tsr_kernel_limits *limits, const char *adder,
                                   tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

#endif
