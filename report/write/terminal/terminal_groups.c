/* Draws bars and columns of relative errors, from 0: twice the error is twice the height. */
#include "common/text.h"
#include "report/write/terminal/terminal_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_BARS = 16, LABEL = 30, FIGURES = 32, BAR = 12, MARGIN = 9, HEIGHT = 5, LISTED = 5 };

/* The figure of a group in a chart. */
typedef struct measure {
    const char *title;
    double (*value)(const tsr_tensor_group *);
    bool (*marked)(const tsr_tensor_group *);
} measure;

static double relative_of(const tsr_tensor_group *g)
{
    return g->relative;
}

static double block_of(const tsr_tensor_group *g)
{
    return g->worst_block;
}

static bool is_outlier(const tsr_tensor_group *g)
{
    return g->outlier;
}

static bool is_block_outlier(const tsr_tensor_group *g)
{
    return g->block_outlier;
}

static bool is_any_outlier(const tsr_tensor_group *g)
{
    return g->outlier || g->block_outlier;
}

/* Returns the value of a full bar: the largest error, or twice the median, so that equal groups have half a bar. */
static double full_of(const tsr_groups *groups, double (*value)(const tsr_tensor_group *))
{
    double *const values = malloc((groups->count + 1) * sizeof *values), largest = 0;
    size_t n = 0;
    for (size_t i = 0; values != NULL && i < groups->count; i++) {
        if (isfinite(value(&groups->items[i])))
            values[n++] = value(&groups->items[i]);
        largest = n > 0 ? fmax(largest, values[n - 1]) : largest;
    }
    if (n > 0)
        qsort(values, n, sizeof *values, tsr_by_number);
    const double usual = n > 0 ? values[(n - 1) / 2] : 0;
    free(values);
    return fmax(largest, 2 * usual);
}

static void draw_number(tsr_text *text, const char *format, double value)
{
    if (isnan(value))
        tsr_text_printf(text, "%8s", "-");
    else if (isinf(value))
        tsr_text_printf(text, "%8s", value > 0 ? "exact" : "lost");
    else
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        tsr_text_printf(text, format, value);
#pragma GCC diagnostic pop
}

/* ---- bars ---- */

/* Return the widths of labels and bars. A narrow terminal shortens the labels. */
static int label_of(const tsr_style *style)
{
    const int left = (int)style->width - FIGURES - BAR;
    return left > LABEL ? LABEL : left;
}

static unsigned room_of(const tsr_style *style)
{
    return style->width - FIGURES - (unsigned)label_of(style);
}

static void draw_bar_line(tsr_text *text, const tsr_style *style, const tsr_tensor_group *g, double full)
{
    const bool marked = is_any_outlier(g);
    const unsigned room = room_of(style);
    tsr_draw(text, style, TSR_INK_BAD, marked ? "! " : "  ");
    tsr_draw_fitted(text, style, TSR_INK_NONE, g->label, label_of(style) - 2);
    tsr_text_printf(text, "%6u", g->count);
    draw_number(text, "%8.2f", g->lowest);
    draw_number(text, "%8.2f", g->median);
    tsr_text_append(text, " ", 1);
    tsr_draw_bar(text, style, g->outlier ? TSR_INK_BAD : TSR_INK_NONE, g->relative, full, room);
    draw_number(text, "%8.3f", g->worst_block);
    tsr_text_append(text, "\n", 1);
}

/* Draws all groups with figures in order if they fit, otherwise the worst ones. */
static void draw_bars(tsr_text *text, const tsr_style *style, const tsr_groups *groups, const char *name)
{
    const tsr_tensor_group **const list = malloc((groups->count + 1) * sizeof *list);
    const double full = full_of(groups, relative_of);
    if (list == NULL) {
        text->failed = true;
        return;
    }
    size_t n = 0;
    for (size_t i = 0; i < groups->count; i++) {
        if (!isnan(groups->items[i].lowest))
            list[n++] = &groups->items[i];
    }
    const size_t shown = n < MOST_BARS ? n : MOST_BARS;
    if (shown < n)
        qsort(list, n, sizeof *list, tsr_worst_group_first);
    tsr_text_printf(text, "  %-*s%6s%8s%8s %-*.*s%8s\n", label_of(style) - 2, name, "count", "min dB", "median",
                    (int)room_of(style), (int)room_of(style), "relative error", "block");
    for (size_t i = 0; i < shown; i++)
        draw_bar_line(text, style, list[i], full);
    if (shown < n)
        tsr_text_printf(text, "  ... and %zu more with smaller errors\n", n - shown);
    free(list);
}

/* ---- columns ---- */

/* Draws a chart of columns. If there are too many groups, several share a column, which shows the worst. */
static void draw_column_chart(tsr_text *text, const tsr_style *style, const tsr_groups *groups, const char *name,
                              const measure *m)
{
    const size_t fits = style->width - MARGIN - 3, together = (groups->count + fits - 1) / fits;
    const size_t n = (groups->count + together - 1) / together;
    double *const values = malloc((n + 1) * sizeof *values);
    bool *const marked = calloc(n + 1, sizeof *marked);
    uint32_t *const numbers = calloc(n + 1, sizeof *numbers);
    char top[32];
    if (values == NULL || marked == NULL || numbers == NULL) {
        text->failed = true;
        goto out;
    }
    const double full = full_of(groups, m->value);
    for (size_t i = 0; i < n; i++)
        values[i] = NAN;
    for (size_t i = 0; i < groups->count; i++) {
        const size_t at = i / together;
        values[at] = fmax(values[at], m->value(&groups->items[i]));
        marked[at] = marked[at] || m->marked(&groups->items[i]);
        if (i % together == 0)
            numbers[at] = groups->items[i].number;
    }
    snprintf(top, sizeof top, "%.3g", full);
    tsr_text_printf(text, "  %s by %s", m->title, name);
    if (together > 1)
        tsr_text_printf(text, ", the worst of each %zu", together);
    tsr_text_append(text, "\n", 1);
    const tsr_canvas_columns columns = {.values = values,
                                        .marked = marked,
                                        .numbers = numbers,
                                        .count = n,
                                        .full = full,
                                        .height = HEIGHT,
                                        .margin = MARGIN,
                                        .top = top};
    tsr_draw_columns(text, style, &columns);
out:
    free(values);
    free(marked);
    free(numbers);
}

static bool any(const tsr_groups *groups, bool (*is)(const tsr_tensor_group *))
{
    for (size_t i = 0; i < groups->count; i++) {
        if (is(&groups->items[i]))
            return true;
    }
    return false;
}

/* ---- all ---- */

/* Names the outliers, and the tensors that cause them. */
static void draw_outliers(tsr_text *text, const tsr_style *style, const tsr_overview *o, tsr_grouping grouping)
{
    const tsr_groups *const groups = &o->groups[grouping];
    size_t listed = 0;
    for (size_t i = 0; i < groups->count && listed < LISTED; i++) {
        const tsr_tensor_group *const g = &groups->items[i];
        if (!is_any_outlier(g))
            continue;
        listed++;
        const uint32_t row = g->outlier ? groups->order[g->first] : g->block_row;
        tsr_draw(text, style, TSR_INK_BAD, "! ");
        tsr_text line = {0};
        tsr_text_printf(&line, "%s %s ", tsr_grouping_name(grouping), g->label);
        if (g->outlier)
            tsr_text_printf(&line, "is far below the others: %.2f dB in", g->lowest);
        else
            tsr_text_printf(&line, "has a block far worse than the others: %.3g in", g->worst_block);
        tsr_draw_line(text, style, 2, 4, &line);
        tsr_text_printf(text, "    ");
        tsr_draw(text, style, TSR_INK_NONE, o->result->rows[row].name);
        tsr_text_append(text, "\n", 1);
    }
    if (groups->outliers > listed)
        tsr_text_printf(text, "! ... and %zu more\n", groups->outliers - listed);
}

static bool has_figures(const tsr_groups *groups)
{
    for (size_t i = 0; i < groups->count; i++) {
        if (!isnan(groups->items[i].lowest))
            return true;
    }
    return false;
}

void tsr_draw_groups(tsr_text *text, const tsr_style *style, const tsr_overview *o)
{
    static const measure kErrors = {"largest relative error", relative_of, is_outlier},
                         kBlocks = {"error of the worst block", block_of, is_block_outlier};
    for (tsr_grouping g = 0; g < TSR_N_GROUPINGS; g++) {
        const tsr_groups *const groups = &o->groups[g];
        const char *const name = tsr_grouping_name(g);
        if (!has_figures(groups) || (groups->count == 1 && g != TSR_BY_LAYER))
            continue;
        tsr_text_append(text, "\n", 1);
        if (groups->count <= MOST_BARS || g == TSR_BY_MODULE || g == TSR_BY_WHAT) {
            draw_bars(text, style, groups, name);
        } else {
            draw_column_chart(text, style, groups, name, &kErrors);
            if (any(groups, is_block_outlier))
                draw_column_chart(text, style, groups, name, &kBlocks);
        }
        draw_outliers(text, style, o, g);
    }
}
