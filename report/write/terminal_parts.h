/* Declares the parts of the summary on a terminal, each drawn by a file of its own. */
#ifndef TSR_REPORT_WRITE_TERMINAL_PARTS_H
#define TSR_REPORT_WRITE_TERMINAL_PARTS_H

#include "report/model/overview.h"
#include "report/read/baseline.h"
#include "report/write/canvas.h"

/* Draws regressions against a baseline. */
void tsr_draw_baseline(tsr_text *text, const tsr_style *style, const tsr_baseline *baseline);

/* Draws a small map of block errors of the tensor with the worst block, its worst cell, and its largest errors, or
 * the reason why there is none. Draws nothing without data on blocks. */
void tsr_draw_blocks(tsr_text *text, const tsr_style *style, const tsr_overview *overview);

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

/* Draws the table of the schemes of compare-schemes, and the tensors with the largest errors of each. Draws nothing if
 * the result has no schemes. Narrow styles omit columns and shorten names. */
void tsr_draw_schemes(tsr_text *text, const tsr_style *style, const tsr_result *result);

#endif
