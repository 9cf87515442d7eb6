/* Declares the writers: each appends a whole document about a report to a text.
 *
 * They read only the model and its sums. */
#pragma once

#include "report/report.h"
#include "report/write/page.h"

/* Writes Markdown for a comment on a pull request. */
void tsr_write_markdown(tsr_text *text, const tsr_report *report);

/* Writes CSV by RFC 4180: a row per tensor or judgement, and per finding without one. */
void tsr_write_csv(tsr_text *text, const tsr_report *report);

/* Writes JUnit XML: a suite for each result. */
tsr_status tsr_write_junit(tsr_text *text, const tsr_report *report, tsr_err *err);

/* Writes the report as JSON, tessera-report/1. */
void tsr_write_json(tsr_text *text, const tsr_report *report);

/* Writes a page for people, in the parts of tsr_page_parts, with about `most_rows` rows in its table. Returns the
 * number of rows left out. */
size_t tsr_write_html(tsr_text *text, const tsr_report *report, const tsr_page_part *page, size_t most_rows);
