/* The writers: each appends a whole document about a report to a text. They read the model and its sums, and nothing else. */
#ifndef TSR_REPORT_WRITERS_H
#define TSR_REPORT_WRITERS_H

#include "report/canvas.h"
#include "report/page.h"
#include "report/report.h"

void tsr_write_terminal(tsr_text *text, const tsr_report *report, const tsr_style *style);

/* Markdown for a comment on a pull request. */
void tsr_write_markdown(tsr_text *text, const tsr_report *report);

/* CSV by RFC 4180: a row for each tensor or judgement, and for each finding that is about none. */
void tsr_write_csv(tsr_text *text, const tsr_report *report);

/* JUnit XML: a suite for each result. */
tsr_status tsr_write_junit(tsr_text *text, const tsr_report *report, tsr_err *err) TSR_WARN_UNUSED;

/* The report itself as JSON, tessera-report/1. */
void tsr_write_json(tsr_text *text, const tsr_report *report);

/* A page for people, in the parts that tsr_page_parts gives, with about `most_rows` rows in its table. Returns how many rows it leaves
 * out. */
size_t tsr_write_html(tsr_text *text, const tsr_report *report, const tsr_page_part *page, size_t most_rows);

/* "PASS", "FAIL"; "INFO" where there is no verdict: in every form of a report. Static storage. */
const char *tsr_verdict_word(tsr_outcome outcome);

#endif
