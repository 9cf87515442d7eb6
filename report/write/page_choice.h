/* Chooses the rows of a result for the page: all, or the worst if a browser cannot hold all.
 *
 * Failed rows come first, then those with the lowest SQNR. Rows that a chart, a list or a finding of the page refers
 * to are always included, and so is the row with the largest value of each figure. */
#pragma once

#include "report/report.h"

/* Limits of the page's tables. CSV and JSON have all rows. */
enum { TSR_PAGE_ROWS = 100000, TSR_PAGE_FINDINGS = 10000, TSR_PAGE_REGRESSIONS = 10000, TSR_PAGE_GROUPS = 4096 };

typedef struct tsr_page_choice {
    uint32_t *rows; /* chosen rows, in the order of the result */
    uint32_t *at;   /* index of each row of the result in `rows`; TSR_NO_ROW: left out */
    size_t count;
    const tsr_result_finding **findings; /* listed findings, errors before warnings */
    size_t n_findings;
} tsr_page_choice;

/* Returns the number of rows that each result may have, `most` in all. Results with fewer rows leave the rest to the
 * others. */
size_t tsr_page_share(const tsr_report *report, size_t most);

/* Chooses about `most` rows. `baseline` is the report's. Returns false if memory is exhausted; then there is nothing
 * to free. */
bool tsr_page_choose(tsr_page_choice *choice, const tsr_overview *overview, const tsr_baseline *baseline, size_t most);

/* Frees a choice. A zeroed one is allowed. */
void tsr_page_choice_free(tsr_page_choice *choice);
