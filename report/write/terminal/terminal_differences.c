/* Draws the tensors that differ between two checkpoints, and those that have no counterpart. */
#include "report/write/terminal/terminal_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- order ---- */

typedef struct ranked {
    uint32_t row;
    double badness;
} ranked;

static int worst_first(const void *a, const void *b)
{
    const ranked *const x = a, *const y = b;
    if (x->badness != y->badness)
        return x->badness > y->badness ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

uint32_t *tsr_rank_differences(const tsr_result *result, tsr_figure metric, size_t *n)
{
    ranked *const list = malloc((result->n_rows + 1) * sizeof *list);
    uint32_t *const order = malloc((result->n_rows + 1) * sizeof *order);
    *n = 0;
    for (size_t i = 0; list != NULL && i < result->n_rows; i++) {
        const tsr_row *const row = &result->rows[i];
        if (tsr_row_in_state(row, "differs"))
            list[(*n)++] =
                (ranked){(uint32_t)i, metric == TSR_FIGURE_SQNR ? -row->figures[metric] : tsr_row_error(row, metric)};
    }
    if (list != NULL)
        qsort(list, *n, sizeof *list, worst_first);
    for (size_t i = 0; order != NULL && list != NULL && i < *n; i++)
        order[i] = list[i].row;
    free(list);
    if (list != NULL)
        return order;
    free(order);
    return NULL;
}

/* ---- text ---- */

/* Draws the figures of a tensor, the position of its largest error with the cause, and its worst block. */
static void draw_difference(tsr_text *text, const tsr_style *style, const tsr_row *row)
{
    const double *const f = row->figures;
    tsr_text line = {0};
    tsr_text_printf(&line, "%-9.3g %8.2f  %-9.3g %-9.3g  %s  (%s)%s", tsr_row_error(row, TSR_FIGURE_RELATIVE),
                    f[TSR_FIGURE_SQNR], tsr_row_error(row, TSR_FIGURE_CALC_DIFF),
                    tsr_row_error(row, TSR_FIGURE_MAX_ABS), row->name, row->dtype == NULL ? "" : row->dtype,
                    row->outcome == TSR_OUTCOME_FAILED ? "" : "  within tolerance");
    tsr_draw_line(text, style, 0, 10, &line);
    tsr_text_printf(&line, "          %.0f of %.0f values differ, the largest error at %s", f[TSR_FIGURE_DIFFER],
                    f[TSR_FIGURE_ELEMENTS], row->error_at == NULL ? "" : row->error_at);
    if (row->cause != NULL)
        tsr_text_printf(&line, ": %s", row->cause);
    tsr_draw_line(text, style, 0, 10, &line);
    if (row->block_at == NULL)
        return;
    tsr_text_printf(&line, "          worst block: %s: relative error %.3g, max error %.3g", row->block_at,
                    tsr_row_error(row, TSR_FIGURE_WORST_BLOCK), isnan(row->block_max) ? INFINITY : row->block_max);
    tsr_draw_line(text, style, 0, 10, &line);
}

/* Draws the tensors in a state, at most `most`. */
static void draw_state(tsr_text *text, const tsr_style *style, const tsr_result *result, const char *state,
                       const char *what, size_t most)
{
    const size_t n = tsr_count_in_state(result, state);
    size_t listed = 0;
    if (n > 0)
        tsr_text_printf(text, "%zu %s:\n", n, what);
    for (size_t i = 0; i < result->n_rows && listed < most; i++) {
        const tsr_row *const row = &result->rows[i];
        tsr_text line = {0};
        if (!tsr_row_in_state(row, state))
            continue;
        listed++;
        tsr_text_printf(&line, "  %s  %s", row->name, row->shape == NULL ? "" : row->shape);
        if (row->shape_b != NULL)
            tsr_text_printf(&line, " against %s", row->shape_b);
        tsr_draw_line(text, style, 0, 2, &line);
    }
    if (n > listed)
        tsr_draw_omitted(text, style, 2, n - listed, "");
}

void tsr_draw_together(tsr_text *text, const tsr_style *style, const tsr_result *result)
{
    const tsr_row *const whole = &result->series->whole;
    tsr_text line = {0};
    if (!(whole->figures[TSR_FIGURE_ELEMENTS] > 0))
        return;
    tsr_text_printf(
        &line,
        "tensors that differ, together: relative error %.5g, SQNR %.2f dB, cosine %.6f, calc_diff %.3g, max "
        "error %.3g",
        tsr_row_error(whole, TSR_FIGURE_RELATIVE), whole->figures[TSR_FIGURE_SQNR], whole->figures[TSR_FIGURE_COSINE],
        tsr_row_error(whole, TSR_FIGURE_CALC_DIFF), tsr_row_error(whole, TSR_FIGURE_MAX_ABS));
    tsr_draw_line(text, style, 0, 2, &line);
}

void tsr_draw_differences(tsr_text *text, const tsr_style *style, const tsr_result *result, const uint32_t *order,
                          size_t n, size_t most)
{
    tsr_text line = {0};
    if (n > 0)
        tsr_text_printf(text, "relative  SQNR dB   calc_diff max error  tensor\n");
    for (size_t i = 0; i < n && i < most; i++)
        draw_difference(text, style, &result->rows[order[i]]);
    if (n > most)
        tsr_draw_omitted(text, style, 0, n - most, " that differ");
    draw_state(text, style, result, "misshaped", "of another shape", most);
    draw_state(text, style, result, "missing", "missing in B", most);
    draw_state(text, style, result, "extra", "only in B", most);
    tsr_text_printf(&line, "%zu tensor%s: %zu identical, %zu equal in value, %zu differ, %zu misshaped, %zu missing, ",
                    result->n_rows, tsr_plural(result->n_rows), tsr_count_in_state(result, "identical"),
                    tsr_count_in_state(result, "equal"), n, tsr_count_in_state(result, "misshaped"),
                    tsr_count_in_state(result, "missing"));
    tsr_text_printf(&line, "%zu extra", tsr_count_in_state(result, "extra"));
    tsr_draw_line(text, style, 0, 2, &line);
    tsr_draw_together(text, style, result);
}
