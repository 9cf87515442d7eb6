/* Compares a result with an earlier one of the same kind.
 *
 * Rows are paired by name, `what` and series. Losses are in dB: the difference for SQNR; 20 lg of new over old for
 * the worst block, and 10 lg for KL divergence. Kernels have separate error bounds; only a pass that became a
 * failure counts. */
#pragma once

#include "report/model/overview.h"

/* A pair of rows that is worse by more than the limit. */
typedef struct tsr_regression {
    const tsr_row *now, *before;
    tsr_figure figure; /* figure with the largest loss */
    double loss;       /* in dB; infinite: no error before */
    bool failed;       /* passed before, fails now */
} tsr_regression;

typedef struct tsr_difference {
    const char *name, *before, *now; /* a fact and its values; NULL: absent */
} tsr_difference;

typedef struct tsr_baseline {
    tsr_result old;
    const tsr_result *now; /* borrowed */
    double limit;          /* dB */
    tsr_regression *items; /* worst first: new failures, then by loss */
    size_t count;
    size_t compared, better;     /* number of pairs; pairs that are better by more than the limit */
    const tsr_row **appeared;    /* rows that only `now` has, by name */
    const tsr_row **disappeared; /* rows that only `old` has */
    size_t n_appeared, n_disappeared;
    tsr_difference *differences;
    size_t n_differences;
    double *losses; /* one per row of `now`; NaN: not compared */
} tsr_baseline;

/* Reads `path` and compares. TSR_E_MISMATCH: another kind of result, or no rows in common with `now`. After a
 * failure there is nothing to free. */
tsr_status tsr_baseline_make(tsr_baseline *baseline, const tsr_result *now, const char *path, double limit,
                             tsr_err *err);

/* Like tsr_baseline_make, for an earlier result in memory. `path` is its name in messages. */
tsr_status tsr_baseline_of_text(tsr_baseline *baseline, const tsr_result *now, const char *path, const char *text,
                                size_t size, double limit, tsr_err *err);

void tsr_baseline_free(tsr_baseline *baseline);

/* Returns the row of `now` of a regression; TSR_NO_ROW: the whole of a series. */
uint32_t tsr_regression_row(const tsr_baseline *baseline, const tsr_regression *regression);

/* Writes "SQNR 31.00 dB, 31.57 dB before: 0.57 dB lost". */
void tsr_regression_text(tsr_text *text, const tsr_regression *regression);

/* Writes "3 of 91 got worse by more than 0.1 dB against old.json". */
void tsr_baseline_reason(tsr_text *text, const tsr_baseline *baseline);
