/* What a report is about: one result or several, each summed up, and one verdict over all. */
#ifndef TSR_REPORT_REPORT_H
#define TSR_REPORT_REPORT_H

#include "report/baseline.h"

enum { TSR_MAX_RESULTS = 64 };

typedef struct tsr_report {
    tsr_result *results;
    tsr_overview *overviews; /* of each result */
    size_t count;
    size_t failed, judged; /* results that fell short; results that have a verdict */
    tsr_outcome outcome;   /* NONE: no result has a verdict */
    tsr_baseline baseline; /* of the first result; baseline.now NULL: none */
} tsr_report;

/* Reads and sums up the results; that of verify all counts as one for each kind. After a failure there is nothing to free. */
tsr_status tsr_report_make(tsr_report *report, const char *const *paths, size_t n, tsr_err *err) TSR_WARN_UNUSED;

/* The same of what is in memory already, which `path` names in what is written. */
tsr_status tsr_report_of_text(tsr_report *report, const char *path, const char *text, size_t size,
                              tsr_err *err) TSR_WARN_UNUSED;

/* Compares the only result with an earlier one; what got worse by more than `limit` dB makes the verdict a failure. */
tsr_status tsr_report_compare(tsr_report *report, const char *path, double limit, tsr_err *err) TSR_WARN_UNUSED;

void tsr_report_free(tsr_report *report);

/* "2 of 3 results fell short", "all 7 checks passed": why the verdict is what it is. Appends one line without its end. */
void tsr_report_reason(tsr_text *text, const tsr_report *report);

/* The same of one result. */
void tsr_result_reason(tsr_text *text, const tsr_overview *overview);

#endif
