/* Writes the summary on a terminal: the verdict, the faults, then figures. */
#include "report/write/terminal/terminal_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LISTED = 10, FAILED_OF_ONE = 3, QUANTILE = 8, COUNT = 7, WIDE = 79 };

static void draw_verdict(tsr_text *text, const tsr_style *style, tsr_outcome outcome, tsr_text *reason)
{
    tsr_draw(text, style, tsr_outcome_ink(outcome), tsr_verdict_word(outcome));
    tsr_text_printf(text, "  ");
    tsr_draw_line(text, style, 6, 6, reason);
}

/* Writes "title of path, Tessera version: reason". */
static void draw_head(tsr_text *text, const tsr_style *style, const tsr_overview *o)
{
    const tsr_result *const result = o->result;
    tsr_text line = {0};
    tsr_text_printf(&line, "%s: %s, Tessera %s: ", result->path, result->title, result->version);
    tsr_result_reason(&line, o);
    draw_verdict(text, style, result->outcome, &line);
}

static void draw_facts(tsr_text *text, const tsr_style *style, const char *title, const tsr_facts *facts)
{
    tsr_text line = {0};
    char number[32];
    for (size_t i = 0; i < facts->count; i++)
        tsr_text_printf(&line, "%s%s %s", i == 0 ? "" : "; ", facts->items[i].name,
                        tsr_fact_shown(&facts->items[i], number));
    if (facts->count == 0)
        return;
    tsr_text_printf(text, "  %s", title);
    tsr_draw_line(text, style, (unsigned)strlen(title) + 2, 6, &line);
}

static void draw_checks(tsr_text *text, const tsr_style *style, const tsr_overview *o)
{
    const tsr_result *const result = o->result;
    if (result->n_checks > 0)
        tsr_text_append(text, "\n", 1);
    tsr_draw_checks(text, style, result, 2, LISTED);
    if (o->passed + o->failed > 0 && result->n_checks == 0)
        tsr_text_printf(text, "\n  %zu judgements passed, %zu failed, %zu skipped\n", o->passed, o->failed, o->skipped);
    tsr_draw_findings(text, style, result, LISTED);
}

/* ---- figures ---- */

static void draw_db(tsr_text *text, double value)
{
    if (isfinite(value))
        tsr_text_printf(text, "%8.2f", value);
    else
        tsr_text_printf(text, "%8s", isnan(value) ? "-" : value > 0 ? "exact" : "lost");
}

/* Returns false for quantiles that a narrow terminal omits: 1 % and 90 %. */
static bool shows_quantile(const tsr_style *style, size_t q)
{
    return style->width >= WIDE || (q != 1 && q != 4);
}

/* Draws quantiles of each series, or of each scheme. */
static void draw_spreads(tsr_text *text, const tsr_style *style, const tsr_overview *o)
{
    const tsr_result *const result = o->result;
    const int names = style->width >= WIDE ? 22 : (int)style->width - 4 * QUANTILE - COUNT - 2;
    bool begun = false;
    for (size_t i = 0; i < result->n_series; i++) {
        const tsr_spread *const s = &o->spreads[i];
        if (s->measured == 0)
            continue;
        if (!begun) {
            tsr_text_printf(text, "\n  %-*s%*s", names, "SQNR, dB", COUNT, "count");
            for (size_t q = 0; q < TSR_N_QUANTILES; q++) {
                if (shows_quantile(style, q))
                    tsr_text_printf(text, "%*s", QUANTILE, tsr_quantile_names[q]);
            }
            tsr_text_append(text, "\n", 1);
            begun = true;
        }
        tsr_text_printf(text, "  ");
        tsr_draw_fitted(text, style, TSR_INK_NONE,
                        result->series[i].name[0] == '\0' ? "tensors" : result->series[i].name, names);
        tsr_text_printf(text, "%*zu", COUNT, s->measured - s->lossless);
        for (size_t q = 0; q < TSR_N_QUANTILES; q++) {
            if (shows_quantile(style, q))
                draw_db(text, s->quantiles[q]);
        }
        tsr_text_append(text, "\n", 1);
        if (s->lossless > 0)
            tsr_text_printf(text, "    %zu more without loss\n", s->lossless);
    }
}

/* Prints one line for the whole model: its known figures, in the order of the table of figures. */
static void draw_whole(tsr_text *text, const tsr_style *style, const tsr_overview *o)
{
    static const tsr_figure kShown[] = {TSR_FIGURE_SQNR,        TSR_FIGURE_WEIGHTED_SQNR, TSR_FIGURE_RELATIVE,
                                        TSR_FIGURE_WORST_BLOCK, TSR_FIGURE_SATURATED,     TSR_FIGURE_FLUSHED,
                                        TSR_FIGURE_TENSORS,     TSR_FIGURE_BYTES,         TSR_FIGURE_ERROR};
    const tsr_result *const result = o->result;
    for (size_t i = 0; i < result->n_series; i++) {
        const tsr_series *const s = &result->series[i];
        tsr_text line = {0};
        for (size_t k = 0; k < sizeof kShown / sizeof *kShown && s->has_whole && s->of_bf16 == 0; k++) {
            if (isnan(s->whole.figures[kShown[k]]))
                continue;
            tsr_text_printf(&line, "%s%s ", line.size == 0 ? "" : ", ", tsr_figure_of(kShown[k])->title);
            tsr_figure_text(&line, kShown[k], s->whole.figures[kShown[k]]);
        }
        if (line.size == 0 && !line.failed)
            continue;
        const char *const name = s->name[0] == '\0' ? "whole" : s->name;
        tsr_text_printf(text, "  ");
        tsr_draw(text, style, TSR_INK_BOLD, name);
        tsr_text_printf(text, "  ");
        tsr_draw_line(text, style, (unsigned)strlen(name) + 4, 6, &line);
    }
}

static void draw_worst(tsr_text *text, const tsr_style *style, const tsr_overview *o, const char *title,
                       const uint32_t *rows, size_t n)
{
    char name[1024];
    if (n == 0)
        return;
    tsr_text_printf(text, "\n  %8s %8s  %s\n", "SQNR dB", "block", title);
    for (size_t i = 0; i < n && i < LISTED / 2; i++) {
        const tsr_row *const row = &o->result->rows[rows[i]];
        const double block = row->figures[TSR_FIGURE_WORST_BLOCK];
        tsr_text_printf(text, "  ");
        draw_db(text, row->figures[TSR_FIGURE_SQNR]);
        if (!isfinite(block))
            tsr_text_printf(text, " %8s  ", isnan(block) ? "-" : "lost");
        else
            tsr_text_printf(text, " %8.3f  ", block);
        snprintf(name, sizeof name, "%s%s%s", row->name, row->what == NULL ? "" : ": ",
                 row->what == NULL ? "" : row->what);
        tsr_draw_fitted(text, style, TSR_INK_NONE, name, (int)style->width - 21);
        tsr_end_line(text);
    }
}

/* Draws the judgements of kernels or of a forward pass as their command does. Returns false if the result has none. */
static bool draw_judgements(tsr_text *text, const tsr_style *style, const tsr_result *result)
{
    if (result->n_rows == 0 || result->rows[0].kind == NULL)
        return false;
    tsr_text_append(text, "\n", 1);
    if (result->kind->by_subject)
        tsr_draw_layers(text, style, result);
    else
        tsr_draw_subjects(text, style, result, LISTED, FAILED_OF_ONE);
    tsr_draw_judged(text, style, result, LISTED);
    return true;
}

/* Draws the tensors that differ as diff does. Returns false if the result is not one of diff. */
static bool draw_differences(tsr_text *text, const tsr_style *style, const tsr_result *result)
{
    const char *const metric = tsr_fact_of(&result->facts, "metric");
    size_t n, at = 0;
    if (result->n_rows == 0 || strcmp(result->kind->schema, "tessera-diff/1") != 0)
        return false;
    while (metric != NULL && at + 1 < TSR_DIFF_METRICS && strcmp(tsr_diff_metrics[at].name, metric) != 0)
        at++;
    uint32_t *const order = tsr_rank_differences(result, tsr_diff_metrics[at].figure, &n);
    if (order == NULL) {
        text->failed = true;
        return true;
    }
    tsr_text_append(text, "\n", 1);
    tsr_draw_differences(text, style, result, order, n, LISTED);
    free(order);
    return true;
}

static void draw_result(tsr_text *text, const tsr_style *style, const tsr_overview *o)
{
    const tsr_result *const result = o->result;
    draw_head(text, style, o);
    if (result->command[0] != '\0') {
        tsr_text_printf(text, "  ");
        tsr_draw_wrapped(text, style, 2, 6, result->command);
    }
    draw_facts(text, style, "", &result->facts);
    draw_facts(text, style, "limits: ", &result->limits);
    draw_facts(text, style, "seconds by phase, of all threads: ", &result->phases);
    const bool differences = draw_differences(text, style, result);
    if (!differences && !draw_judgements(text, style, result))
        draw_checks(text, style, o);
    draw_spreads(text, style, o);
    if (!differences)
        draw_whole(text, style, o);
    tsr_draw_schemes(text, style, result);
    tsr_draw_plan(text, style, result);
    tsr_draw_groups(text, style, o);
    draw_worst(text, style, o, "lowest SQNR", o->lowest, o->n_lowest);
    draw_worst(text, style, o, "worst blocks", o->blocks, o->n_blocks);
    tsr_draw_blocks(text, style, o);
}

void tsr_write_terminal(tsr_text *text, const tsr_report *report, const tsr_style *style)
{
    const bool compared = report->baseline.now != NULL;
    if (report->count > 1 || compared) {
        tsr_text reason = {0};
        tsr_report_reason(&reason, report);
        draw_verdict(text, style, report->outcome, &reason);
    }
    if (compared)
        tsr_draw_baseline(text, style, &report->baseline);
    for (size_t i = 0; i < report->count; i++) {
        if (report->count > 1)
            tsr_text_append(text, "\n", 1);
        draw_result(text, style, &report->overviews[i]);
    }
}
