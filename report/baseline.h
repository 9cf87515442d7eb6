/* A result against an earlier one of the same kind: what got worse, and what else differs.
 *
 * Rows are paired by name, by what was judged, and by series. Losses are in dB: of SQNR as it is; of the worst block 20 lg, and of KL
 * divergence 10 lg of new over old. Errors of kernels have bounds of their own; of them only what passed before and fails now counts. */
#ifndef TSR_REPORT_BASELINE_H
#define TSR_REPORT_BASELINE_H

#include "report/overview.h"

/* A pair of rows that got worse beyond the limit. */
typedef struct tsr_regression {
    const tsr_row *now, *before;
    tsr_figure figure; /* the one that lost most */
    double loss;       /* dB; infinite where nothing was lost before */
    bool failed;       /* passed before, and fails now */
} tsr_regression;

typedef struct tsr_difference {
    const char *name, *before, *now; /* of a fact; NULL: not said */
} tsr_difference;

typedef struct tsr_baseline {
    tsr_result old;
    const tsr_result *now; /* borrowed */
    double limit;          /* dB */
    tsr_regression *items; /* worst first: what fails now, then by loss */
    size_t count;
    size_t compared, better;     /* pairs; those that gained more than the limit */
    const tsr_row **appeared;    /* rows of `now` alone, by name */
    const tsr_row **disappeared; /* rows of `old` alone */
    size_t n_appeared, n_disappeared;
    tsr_difference *differences;
    size_t n_differences;
    double *losses; /* of each row of `now`; NaN: not compared */
} tsr_baseline;

/* Reads `path` and compares. TSR_E_MISMATCH: it is another kind of result, or has nothing in common with `now`. After a failure there
 * is nothing to free. */
tsr_status tsr_baseline_make(tsr_baseline *baseline, const tsr_result *now, const char *path, double limit,
                             tsr_err *err) TSR_WARN_UNUSED;

/* The same of an earlier result that is in memory, and which `path` names. */
tsr_status tsr_baseline_of_text(tsr_baseline *baseline, const tsr_result *now, const char *path, const char *text,
                                size_t size, double limit, tsr_err *err) TSR_WARN_UNUSED;

void tsr_baseline_free(tsr_baseline *baseline);

/* Which row of `now` a regression is of; TSR_NO_ROW: of the whole of a series. */
uint32_t tsr_regression_row(const tsr_baseline *baseline, const tsr_regression *regression);

/* "SQNR 31.00 dB, 31.57 dB before: 0.57 dB lost". */
void tsr_regression_text(tsr_text *text, const tsr_regression *regression);

/* "3 of 91 got worse by more than 0.1 dB against old.json". */
void tsr_baseline_reason(tsr_text *text, const tsr_baseline *baseline);

#endif
