/* Text for a terminal: words in colour, names that fit, lines that are wrapped, and charts of block characters.
 *
 * Colour never says anything alone: a word or a mark says the same. Where the terminal takes no UTF-8, charts are ASCII. */
#ifndef TSR_REPORT_CANVAS_H
#define TSR_REPORT_CANVAS_H

#include "common/text.h"

typedef struct tsr_style {
    unsigned width; /* characters in a line, at least 40 */
    bool utf8, colour;
} tsr_style;

typedef enum tsr_ink { TSR_INK_NONE, TSR_INK_GOOD, TSR_INK_BAD, TSR_INK_NOTABLE, TSR_INK_BOLD } tsr_ink;

/* Appends text of a file: made visible, and in this colour. */
void tsr_draw(tsr_text *text, const tsr_style *style, tsr_ink ink, const char *what);

/* The same, padded or cut in its middle to `room` characters; right-aligned when `room` is negative. */
void tsr_draw_fitted(tsr_text *text, const tsr_style *style, tsr_ink ink, const char *what, int room);

/* Ends a line, without blanks at its end. */
void tsr_end_line(tsr_text *text);

/* Wraps words at the style's width. Continued lines begin with `indent` spaces; the line that is open has `used`
 * characters already. Ends the line. */
void tsr_draw_wrapped(tsr_text *text, const tsr_style *style, unsigned used, unsigned indent, const char *what);

/* A bar of `room` characters for `value` of `full`; the rest is blank. */
void tsr_draw_bar(tsr_text *text, const tsr_style *style, tsr_ink ink, double value, double full, unsigned room);

/* A chart of one column for each value, `height` lines and an axis; values above `full` are cut, NaN is left blank.
 * `margin` characters stand in front of each line, with `top` in the first. Columns that are marked are drawn in colour, and have
 * '^' below them. The axis has the number of the first column, and of every tenth one. */
typedef struct tsr_columns {
    const double *values;
    const bool *marked;
    const uint32_t *numbers;
    size_t count; /* margin + 2 + count fit in a line */
    double full;
    unsigned height, margin;
    const char *top;
} tsr_columns;
void tsr_draw_columns(tsr_text *text, const tsr_style *style, const tsr_columns *columns);

#endif
