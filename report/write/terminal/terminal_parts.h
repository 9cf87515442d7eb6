/* Declares the summary on a terminal, and its parts, each drawn by a file of its own. Commands use some parts. */
#pragma once

#include "report/model/overview.h"
#include "report/read/baseline.h"
#include "report/report.h"
#include "report/write/terminal/canvas.h"

/* Writes the whole summary. */
void tsr_write_terminal(tsr_text *text, const tsr_report *report, const tsr_style *style);

/* Returns the colour of a verdict. */
tsr_ink tsr_outcome_ink(tsr_outcome outcome);

/* Draws a line for each check after `indent` spaces, and below it at most `most` of its findings. */
void tsr_draw_checks(tsr_text *text, const tsr_style *style, const tsr_result *result, unsigned indent, size_t most);

/* Draws at most `most` findings that belong to no check of the result: errors, then warnings. */
void tsr_draw_findings(tsr_text *text, const tsr_style *style, const tsr_result *result, size_t most);

/* Draws regressions against a baseline. */
void tsr_draw_baseline(tsr_text *text, const tsr_style *style, const tsr_baseline *baseline);

/* Draws a small map of block errors of the tensor with the worst block, its worst cell, and its largest errors, or
 * the reason why there is none. Draws nothing without data on blocks. */
void tsr_draw_blocks(tsr_text *text, const tsr_style *style, const tsr_overview *overview);

/* Returns the rows that differ, worst first by this figure; from malloc. NULL: out of memory. */
uint32_t *tsr_rank_differences(const tsr_result *result, tsr_figure metric, size_t *n);

/* Draws the first `most` of `n` rows that differ, in this order, then the tensors of another shape and those of one
 * side only, at most `most` each, and the figures of all that differ. */
void tsr_draw_differences(tsr_text *text, const tsr_style *style, const tsr_result *result, const uint32_t *order,
                          size_t n, size_t most);

/* Draws the figures of all tensors that differ, if there are any: those of the whole. */
void tsr_draw_together(tsr_text *text, const tsr_style *style, const tsr_result *result);

/* Draws all groupings of the charted series that are not empty: bars for few groups, a chart of columns for many. */
void tsr_draw_groups(tsr_text *text, const tsr_style *style, const tsr_overview *overview);

/* Draws one line for each tensor or set of experts that kernels were judged on, at most `most` lines, and below it at
 * most `most_failed` of its judgements that failed. If there are more than `most`, those that failed come first. */
void tsr_draw_subjects(tsr_text *text, const tsr_style *style, const tsr_result *result, size_t most,
                       size_t most_failed);

/* Draws one line for each judgement of kernels, below its tensor or set and its kind of error. */
void tsr_draw_details(tsr_text *text, const tsr_style *style, const tsr_result *result);

/* Draws a table of the layers of a forward pass, and its logits; or its comparison with another implementation. Narrow
 * styles omit columns. */
void tsr_draw_layers(tsr_text *text, const tsr_style *style, const tsr_result *result);

/* Draws what was skipped, at most `most` lines, and the number of judgements beyond their limits. */
void tsr_draw_judged(tsr_text *text, const tsr_style *style, const tsr_result *result, size_t most);

/* Draws the table of plan-schemes: choices within budgets, schemes alone, and the chosen one. Draws nothing if the
 * result has none. */
void tsr_draw_plan(tsr_text *text, const tsr_style *style, const tsr_result *result);

/* Draws the table of the schemes of compare-schemes, and the tensors with the largest errors of each. Draws nothing if
 * the result has no schemes. Narrow styles omit columns and shorten names. */
void tsr_draw_schemes(tsr_text *text, const tsr_style *style, const tsr_result *result);
