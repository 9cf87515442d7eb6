/* Draws text for a terminal: colour, truncated names, wrapped lines, and charts of block characters.
 *
 * Colour is never the only sign: a word or a mark has the same meaning. Without UTF-8, charts are ASCII. */
#pragma once

#include "common/text.h"

typedef struct tsr_style {
    unsigned width; /* characters per line, at least 40 */
    bool utf8, colour;
    const char *full; /* option that writes what a list omits: "--json"; NULL: there are no such lists */
} tsr_style;

typedef enum tsr_ink { TSR_INK_NONE, TSR_INK_GOOD, TSR_INK_BAD, TSR_INK_NOTABLE, TSR_INK_BOLD } tsr_ink;

/* Appends text of a file in this colour, with control characters escaped. */
void tsr_draw(tsr_text *text, const tsr_style *style, tsr_ink ink, const char *what);

/* Like tsr_draw, padded or shortened in the middle to `room` characters; right-aligned if `room` is negative. */
void tsr_draw_fitted(tsr_text *text, const tsr_style *style, tsr_ink ink, const char *what, int room);

/* Ends a line and removes trailing spaces. */
void tsr_end_line(tsr_text *text);

/* Wraps words at the style's width and ends the line. `used` is the number of characters already in the current
 * line. Continued lines begin with `indent` spaces. */
void tsr_draw_wrapped(tsr_text *text, const tsr_style *style, unsigned used, unsigned indent, const char *what);

/* Like tsr_draw_wrapped, for a line in a text of its own, which it empties. */
void tsr_draw_line(tsr_text *text, const tsr_style *style, unsigned used, unsigned indent, tsr_text *line);

/* Ends a list that omits `n` items: "... and 5 more that differ (--json FILE lists all)", after `indent` spaces. */
void tsr_draw_omitted(tsr_text *text, const tsr_style *style, unsigned indent, size_t n, const char *what);

/* Draws a bar of `room` characters for `value` of `full`, padded with spaces. */
void tsr_draw_bar(tsr_text *text, const tsr_style *style, tsr_ink ink, double value, double full, unsigned room);

/* A chart with one column per value, `height` lines and an axis. Values above `full` are cut off; NaN is blank. Each
 * line begins with `margin` characters, the first with `top`. Marked columns are coloured and have '^' below them.
 * The axis has the number of the first column, and of every tenth one. */
typedef struct tsr_canvas_columns {
    const double *values;
    const bool *marked;
    const uint32_t *numbers;
    size_t count; /* margin + 2 + count fit in a line */
    double full;
    unsigned height, margin;
    const char *top;
} tsr_canvas_columns;
void tsr_draw_columns(tsr_text *text, const tsr_style *style, const tsr_canvas_columns *columns);
