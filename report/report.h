/* Declares a report: one or several results, a summary of each, and one verdict for all. */
#pragma once

#include "report/read/baseline.h"

enum { TSR_MAX_RESULTS = 64 };

typedef struct tsr_report {
    tsr_result *results;
    tsr_overview *overviews; /* one per result */
    size_t count;
    size_t failed, judged; /* failed results; results with a verdict */
    tsr_outcome outcome;   /* NONE: no result has a verdict */
    const char **rules;    /* paths of files that are not results, but rules for quantize --rules; borrowed */
    size_t n_rules;
    tsr_baseline baseline; /* comparison of the first result; baseline.now NULL: none */
} tsr_report;

/* Reads and sums up the results. A file of verify all counts as one result per kind. Rules are skipped. After a
 * failure there is nothing to free. */
tsr_status tsr_report_make(tsr_report *report, const char *const *paths, size_t n, tsr_err *err);

/* Like tsr_report_make, for one result in memory. `path` is its name in the output. */
tsr_status tsr_report_of_text(tsr_report *report, const char *path, const char *text, size_t size, tsr_err *err);

/* Compares the only result with an earlier one. A regression of more than `limit` dB makes the verdict a failure. */
tsr_status tsr_report_compare(tsr_report *report, const char *path, double limit, tsr_err *err);

void tsr_report_free(tsr_report *report);

/* Appends the reason of the verdict, one line without its end: "2 of 3 results fell short", "all 7 checks passed". */
void tsr_report_reason(tsr_text *text, const tsr_report *report);

/* Like tsr_report_reason, for one result. */
void tsr_result_reason(tsr_text *text, const tsr_overview *overview);
