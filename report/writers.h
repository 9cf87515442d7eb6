/* The writers: each appends a whole document about a report to a text. They read the model and its sums, and nothing else. */
#ifndef TSR_REPORT_WRITERS_H
#define TSR_REPORT_WRITERS_H

#include "report/canvas.h"
#include "report/report.h"

void tsr_write_terminal(tsr_text *text, const tsr_report *report, const tsr_style *style);

/* "PASS", "FAIL"; "INFO" where there is no verdict: in every form of a report. Static storage. */
const char *tsr_verdict_word(tsr_outcome outcome);

#endif
