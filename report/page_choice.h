/* Which rows of a result the page holds: all of them, or the worst where there are more than a browser opens with ease.
 *
 * Those that fell short come first, then those of the lowest SQNR. Rows that a chart, a list or a finding of the page points at
 * are always among them, and so is the largest of each figure. */
#ifndef TSR_REPORT_PAGE_CHOICE_H
#define TSR_REPORT_PAGE_CHOICE_H

#include "report/report.h"

/* What the page lists of other things. CSV and JSON have all. */
enum { TSR_PAGE_ROWS = 200000, TSR_PAGE_FINDINGS = 10000, TSR_PAGE_REGRESSIONS = 10000, TSR_PAGE_GROUPS = 4096 };

typedef struct tsr_page_choice {
    uint32_t *rows; /* those that the page holds, in the order of the result */
    uint32_t *at;   /* where each row of the result stands among them; TSR_NO_ROW: it is left out */
    size_t count;
    const tsr_result_finding **findings; /* those that the page lists: errors before warnings */
    size_t n_findings;
} tsr_page_choice;

/* What a result may hold of `most` rows in all, such that results that need less leave the rest to the others. */
size_t tsr_page_share(const tsr_report *report, size_t most);

/* Chooses about `most` rows; `baseline` is the report's. False: memory is exhausted, and there is nothing to free. */
bool tsr_page_choose(tsr_page_choice *choice, const tsr_overview *overview, const tsr_baseline *baseline, size_t most);

/* A zeroed one is fine. */
void tsr_page_choice_free(tsr_page_choice *choice);

#endif
