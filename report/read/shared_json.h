/* Declares the JSON members that the JSON report and the HTML page share.
 *
 * The report has full numbers and texts. The page has rounded numbers, and texts escaped so that they cannot end a
 * script. */
#pragma once

#include "report/read/baseline.h"

typedef struct tsr_json_style {
    bool in_line; /* true: lists are on one line */
    void (*text)(tsr_text *t, const char *key, const char *value);
    void (*number)(tsr_text *t, const char *key, double value);
} tsr_json_style;

/* Writes the known figures as members of the open object. */
void tsr_share_figures(tsr_text *t, const tsr_json_style *style, const double figures[TSR_N_FIGURES]);

/* Writes "checks": the names of checks, and the number of findings of each. */
void tsr_share_checks(tsr_text *t, const tsr_json_style *style, const tsr_result *result);

/* Writes severity, check, where and what as members of the open object. */
void tsr_share_finding(tsr_text *t, const tsr_json_style *style, const tsr_result_finding *finding);

/* Writes a regression as members of the open object. */
void tsr_share_regression(tsr_text *t, const tsr_json_style *style, const tsr_regression *regression);

/* Writes "differences": facts that differ between the results. */
void tsr_share_differences(tsr_text *t, const tsr_json_style *style, const tsr_baseline *baseline);
