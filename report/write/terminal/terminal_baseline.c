/* Prints regressions, then rows that appeared or disappeared, then differences in how the results were made. */
#include "report/write/terminal/terminal_parts.h"

enum { LISTED = 10 };

static void draw_regressions(tsr_text *text, const tsr_style *style, const tsr_baseline *b)
{
    for (size_t i = 0; i < b->count && i < LISTED; i++) {
        const tsr_regression *const r = &b->items[i];
        tsr_text line = {0};
        tsr_text_printf(text, "  ");
        tsr_draw_fitted(text, style, TSR_INK_BAD, r->failed ? "FAIL" : "worse", 7);
        tsr_draw(text, style, TSR_INK_BOLD, r->now->name);
        tsr_text_printf(text, "\n         ");
        if (r->now->what != NULL)
            tsr_text_printf(&line, "%s: ", r->now->what);
        else if (b->now->n_series > 1 && b->now->series[r->now->series].name[0] != '\0')
            tsr_text_printf(&line, "%s: ", b->now->series[r->now->series].name);
        tsr_regression_text(&line, r);
        tsr_draw_line(text, style, 9, 9, &line);
    }
    if (b->count > LISTED)
        tsr_draw_omitted(text, style, 2, b->count - LISTED, " that got worse");
}

static void draw_rows(tsr_text *text, const tsr_style *style, const tsr_result *result, const tsr_row *const *rows,
                      size_t n, const char *what)
{
    if (n == 0)
        return;
    tsr_text_printf(text, "  %zu %s\n", n, what);
    for (size_t i = 0; i < n && i < LISTED / 2; i++) {
        const char *const series = result->series[rows[i]->series].name;
        tsr_text_printf(text, "         ");
        tsr_draw(text, style, TSR_INK_NONE, rows[i]->name);
        if (series[0] != '\0') {
            tsr_text_printf(text, " (");
            tsr_draw(text, style, TSR_INK_NONE, series);
            tsr_text_append(text, ")", 1);
        }
        tsr_text_append(text, "\n", 1);
    }
    if (n > LISTED / 2)
        tsr_text_printf(text, "         ... and %zu more\n", n - LISTED / 2);
}

static void draw_differences(tsr_text *text, const tsr_style *style, const tsr_baseline *b)
{
    for (size_t i = 0; i < b->n_differences; i++) {
        const tsr_difference *const d = &b->differences[i];
        tsr_text line = {0};
        tsr_text_printf(&line, "%s: %s; before: %s", d->name, d->now == NULL ? "not said" : d->now,
                        d->before == NULL ? "not said" : d->before);
        tsr_text_printf(text, "  ");
        tsr_draw_fitted(text, style, TSR_INK_NOTABLE, "differs", 9);
        tsr_draw_line(text, style, 11, 9, &line);
    }
}

void tsr_draw_baseline(tsr_text *text, const tsr_style *style, const tsr_baseline *b)
{
    draw_regressions(text, style, b);
    draw_rows(text, style, &b->old, b->disappeared, b->n_disappeared, "gone:");
    draw_rows(text, style, b->now, b->appeared, b->n_appeared, "new:");
    draw_differences(text, style, b);
    tsr_text_printf(text, "  %zu compared: %zu worse, %zu better by more than %g dB\n\n", b->compared, b->count,
                    b->better, b->limit);
}
