/* What the report as JSON and the data of the page say in the same members. They differ in how texts and numbers are written: in full
 * for programs; visible, in a few digits, and such that nothing ends a script for the page. */
#ifndef TSR_REPORT_SHARED_JSON_H
#define TSR_REPORT_SHARED_JSON_H

#include "report/baseline.h"

typedef struct tsr_json_style {
    bool in_line; /* whether lists stand on one line */
    void (*text)(tsr_text *t, const char *key, const char *value);
    void (*number)(tsr_text *t, const char *key, double value);
} tsr_json_style;

/* Members of the object that is open: the figures that are known. */
void tsr_share_figures(tsr_text *t, const tsr_json_style *style, const double figures[TSR_N_FIGURES]);

/* "checks": what was judged by name, and how many findings it has. */
void tsr_share_checks(tsr_text *t, const tsr_json_style *style, const tsr_result *result);

/* Members of the object that is open: severity, check, where, what. */
void tsr_share_finding(tsr_text *t, const tsr_json_style *style, const tsr_result_finding *finding);

/* Members of the object that is open: what got worse, and by how much. */
void tsr_share_regression(tsr_text *t, const tsr_json_style *style, const tsr_regression *regression);

/* "differences": facts that are not the same in both results. */
void tsr_share_differences(tsr_text *t, const tsr_json_style *style, const tsr_baseline *baseline);

#endif
