/* Writes CSV by RFC 4180: a row per tensor or judgement, and one per finding without a tensor. */
#include "report/write/writers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Names of the columns before and after the figures. */
static const char kFirst[] = "result,kind,series,name,what,outcome,layer,module,expert,dtype,shape,file";
static const char kLast[] = "max_abs_error_at,worst_block_at,note,findings";

/* Returns true if a spreadsheet would read the text as a formula. */
static bool is_formula(const char *text)
{
    return text[0] != '\0' && strchr("=+-@\t\r", text[0]) != NULL;
}

static void field(tsr_text *text, const char *value)
{
    tsr_text shown = {0};
    if (value == NULL || *value == '\0')
        return;
    tsr_text_visible(&shown, value, strlen(value));
    const char *const data = shown.data == NULL ? "" : shown.data;
    const bool formula = is_formula(data);
    if (!formula && data[strcspn(data, ",\"\n\r")] == '\0') {
        tsr_text_append(text, data, shown.size);
    } else {
        tsr_text_printf(text, formula ? "\"'" : "\"");
        for (size_t i = 0; i < shown.size; i++)
            tsr_text_append(text, data[i] == '"' ? "\"\"" : data + i, data[i] == '"' ? 2 : 1);
        tsr_text_append(text, "\"", 1);
    }
    text->failed = text->failed || shown.failed;
    tsr_text_free(&shown);
}

static void next_field(tsr_text *text, const char *value)
{
    tsr_text_append(text, ",", 1);
    field(text, value);
}

static void number(tsr_text *text, double value)
{
    tsr_text_append(text, ",", 1);
    if (isinf(value))
        tsr_text_printf(text, value > 0 ? "inf" : "-inf");
    else if (!isnan(value))
        tsr_text_printf(text, value == floor(value) && fabs(value) < 9e15 ? "%.0f" : "%.9g", value);
}

static void whole_number(tsr_text *text, uint32_t value)
{
    if (value == TSR_NO_NUMBER)
        tsr_text_append(text, ",", 1);
    else
        tsr_text_printf(text, ",%u", value);
}

/* Joins the findings about a row by "; ". `order` has the findings by row. */
static void findings_of(tsr_text *text, const tsr_result *result, const uint32_t *order, size_t *at, uint32_t row)
{
    tsr_text joined = {0};
    while (*at < result->n_findings && result->findings[order[*at]].row < row)
        ++*at;
    for (; *at < result->n_findings && result->findings[order[*at]].row == row; ++*at) {
        const tsr_result_finding *const f = &result->findings[order[*at]];
        tsr_text_printf(&joined, "%s%s: %s", joined.size == 0 ? "" : "; ", f->check, f->text);
    }
    next_field(text, joined.data);
    text->failed = text->failed || joined.failed;
    tsr_text_free(&joined);
}

static void write_first(tsr_text *text, const tsr_result *result, const tsr_row *row, const char *series,
                        const char *outcome)
{
    char module[TSR_MAX_MODULE];
    field(text, result->path);
    next_field(text, result->title);
    next_field(text, series);
    next_field(text, row->name);
    next_field(text, row->what);
    next_field(text, outcome);
    whole_number(text, row->place.layer);
    next_field(text, strchr(row->name, '.') == NULL ? "" : tsr_module_of(row->name, module));
    whole_number(text, row->place.expert);
    next_field(text, row->dtype);
    next_field(text, row->shape);
    next_field(text, row->file);
}

static void write_figures(tsr_text *text, const tsr_row *row, const bool *used, const double *loss)
{
    if (loss != NULL)
        number(text, *loss);
    for (tsr_figure f = 0; f < TSR_N_FIGURES; f++) {
        if (used[f])
            number(text, row->figures[f]);
    }
    next_field(text, row->error_at);
    next_field(text, row->block_at);
    next_field(text, row->note);
}

static int by_row(const void *a, const void *b, void *data)
{
    const tsr_result *const r = data;
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (r->findings[x].row != r->findings[y].row)
        return r->findings[x].row < r->findings[y].row ? -1 : 1;
    return (x > y) - (x < y);
}

/* Writes a result. `losses` has one value per row against the baseline; NULL: none. */
static void write_result(tsr_text *text, const tsr_result *result, const bool *used, const double *losses)
{
    static const double kUnknown = NAN;
    uint32_t *const order = malloc((result->n_findings + 1) * sizeof *order);
    size_t at = 0;
    if (order == NULL) {
        text->failed = true;
        return;
    }
    for (uint32_t i = 0; i < result->n_findings; i++)
        order[i] = i;
    if (result->n_findings > 0)
        qsort_r(order, result->n_findings, sizeof *order, by_row, (void *)result);
    for (uint32_t i = 0; i < result->n_rows; i++) {
        const tsr_row *const row = &result->rows[i];
        write_first(text, result, row, result->series[row->series].name, tsr_outcome_name(row->outcome));
        write_figures(text, row, used, losses == NULL ? NULL : &losses[i]);
        findings_of(text, result, order, &at, i);
        tsr_text_append(text, "\r\n", 2);
    }
    for (; at < result->n_findings; at++) { /* TSR_NO_ROW is the largest number */
        const tsr_result_finding *const f = &result->findings[order[at]];
        tsr_row row;
        tsr_row_clear(&row);
        row.name = f->where;
        row.place = tsr_place_of(f->where);
        write_first(text, result, &row, "findings", f->fatal ? "failed" : "warning");
        write_figures(text, &row, used, losses == NULL ? NULL : &kUnknown);
        tsr_text line = {0};
        tsr_text_printf(&line, "%s: %s", f->check, f->text);
        next_field(text, line.data);
        tsr_text_free(&line);
        tsr_text_append(text, "\r\n", 2);
    }
    free(order);
}

/* Writes rows that only the earlier result has. */
static void write_gone(tsr_text *text, const tsr_baseline *b, const bool *used)
{
    static const double kUnknown = NAN;
    for (size_t i = 0; i < b->n_disappeared; i++) {
        const tsr_row *const row = b->disappeared[i];
        write_first(text, &b->old, row, b->old.series[row->series].name, "disappeared");
        write_figures(text, row, used, &kUnknown);
        next_field(text, NULL);
        tsr_text_append(text, "\r\n", 2);
    }
}

void tsr_write_csv(tsr_text *text, const tsr_report *report)
{
    bool used[TSR_N_FIGURES] = {false};
    for (size_t i = 0; i < report->count; i++) {
        for (size_t k = 0; k < report->results[i].n_rows; k++) {
            for (tsr_figure f = 0; f < TSR_N_FIGURES; f++)
                used[f] = used[f] || !isnan(report->results[i].rows[k].figures[f]);
        }
    }
    const bool compared = report->baseline.now != NULL;
    tsr_text_printf(text, compared ? "%s,loss_db" : "%s", kFirst);
    for (tsr_figure f = 0; f < TSR_N_FIGURES; f++) {
        if (used[f])
            tsr_text_printf(text, ",%s", tsr_figure_of(f)->key);
    }
    tsr_text_printf(text, ",%s\r\n", kLast);
    for (size_t i = 0; i < report->count; i++)
        write_result(text, &report->results[i], used, compared ? report->baseline.losses : NULL);
    if (compared)
        write_gone(text, &report->baseline, used);
}
