/* Writes the columns of JSON for the page. */
#include "report/write/page_rows.h"

#include "formats/json/json_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

/* Writes a quoted text with '<', '>' and '&' as \u003c and so on, so that no text can end the script or begin a
 * comment. */
static void quote(tsr_text *text, const char *value)
{
    tsr_text shown = {0};
    tsr_text_visible(&shown, value, strlen(value));
    tsr_text_append(text, "\"", 1);
    for (size_t i = 0, end; i < shown.size; i = end + 1) {
        for (end = i; end < shown.size && strchr("\"\\<>&", shown.data[end]) == NULL;)
            end++;
        tsr_text_append(text, shown.data + i, end - i);
        if (end < shown.size)
            tsr_text_printf(text, "\\u%04x", (unsigned)shown.data[end]);
    }
    tsr_text_append(text, "\"", 1);
    text->failed = text->failed || shown.failed;
    tsr_text_free(&shown);
}

static void append_value(tsr_text *to, tsr_text *value)
{
    tsr_json_raw(to, value->data, value->size);
    to->failed = to->failed || value->failed;
    tsr_text_free(value);
}

void tsr_page_string(tsr_text *text, const char *value)
{
    tsr_text quoted = {0};
    if (value == NULL) {
        tsr_json_null(text);
        return;
    }
    quote(&quoted, value);
    append_value(text, &quoted);
}

void tsr_page_member(tsr_text *text, const char *key, const char *value)
{
    tsr_json_key(text, key);
    tsr_page_string(text, value);
}

static int print_number(char out[40], double value)
{
    if (isnan(value))
        return snprintf(out, 40, "null");
    if (isinf(value))
        return snprintf(out, 40, value > 0 ? "\"inf\"" : "\"-inf\"");
    return snprintf(out, 40, value == floor(value) && fabs(value) <= 0x1p53 ? "%.0f" : "%.7g", value);
}

void tsr_page_number(tsr_text *text, double value)
{
    char number[40];
    tsr_json_raw(text, number, (size_t)print_number(number, value));
}

void tsr_page_member_number(tsr_text *text, const char *key, double value)
{
    tsr_json_key(text, key);
    tsr_page_number(text, value);
}

/* ---- columns ---- */

/* A cell's value: a text or a number. */
typedef struct cell {
    const char *text;
    double number; /* NaN: no number */
} cell;

/* Data from which columns take their cells. */
typedef struct table {
    const tsr_result *result;
    const tsr_page_choice *choice;
    const double *losses;
    const uint32_t *groups; /* group of each row; NULL: none */
    tsr_figure figure;
    size_t text_at; /* offset of a text in a row */
    char module[TSR_MAX_MODULE];
} table;

typedef cell cell_of(table *t, uint32_t row);

static cell text_cell(table *t, uint32_t row)
{
    const char *text;
    memcpy(&text, (const char *)&t->result->rows[row] + t->text_at, sizeof text);
    return (cell){text, NAN};
}

static cell figure_cell(table *t, uint32_t row)
{
    return (cell){NULL, t->result->rows[row].figures[t->figure]};
}

static cell module_cell(table *t, uint32_t row)
{
    const char *const name = t->result->rows[row].name;
    return (cell){strchr(name, '.') == NULL ? NULL : tsr_module_of(name, t->module), NAN};
}

static double whole_number(uint32_t number)
{
    return number == TSR_NO_NUMBER ? NAN : (double)number;
}

static cell layer_cell(table *t, uint32_t row)
{
    return (cell){NULL, whole_number(t->result->rows[row].place.layer)};
}

static cell expert_cell(table *t, uint32_t row)
{
    return (cell){NULL, whole_number(t->result->rows[row].place.expert)};
}

static cell series_cell(table *t, uint32_t row)
{
    return (cell){NULL, t->result->rows[row].series};
}

static cell outcome_cell(table *t, uint32_t row)
{
    return (cell){NULL, t->result->rows[row].outcome};
}

static cell loss_cell(table *t, uint32_t row)
{
    return (cell){NULL, t->losses[row]};
}

static cell group_cell(table *t, uint32_t row)
{
    return (cell){NULL, whole_number(t->groups[row])};
}

/* Writes a column. A text equal to that of the previous row, which is frequent for shapes and files, is written as
 * 0. */
static void write_column(tsr_text *text, const char *key, table *t, cell_of *at)
{
    tsr_text column = {0}, above = {0};
    bool used = false, first = true;
    for (size_t i = 0; i < t->choice->count; i++) {
        const cell c = at(t, t->choice->rows[i]);
        char number[40];
        tsr_text_append(&column, i == 0 ? "[" : ",", 1);
        used = used || c.text != NULL || !isnan(c.number);
        if (c.text == NULL) {
            tsr_text_append(&column, number, (size_t)print_number(number, c.number));
            continue;
        }
        if (!first && above.size == strlen(c.text) && memcmp(above.data, c.text, above.size) == 0) {
            tsr_text_append(&column, "0", 1);
            continue;
        }
        quote(&column, c.text);
        above.size = 0;
        tsr_text_append(&above, c.text, strlen(c.text));
        first = above.size == 0;
    }
    tsr_text_append(&column, "]", 1);
    column.failed = column.failed || above.failed;
    tsr_text_free(&above);
    if (used || column.failed) {
        tsr_json_key(text, key);
        append_value(text, &column);
    } else {
        tsr_text_free(&column);
    }
}

static void write_texts(tsr_text *text, table *t)
{
    static const struct {
        const char *key;
        size_t at;
    } kTexts[] = {{"name", offsetof(tsr_row, name)},         {"what", offsetof(tsr_row, what)},
                  {"note", offsetof(tsr_row, note)},         {"file", offsetof(tsr_row, file)},
                  {"shape", offsetof(tsr_row, shape)},       {"dtype", offsetof(tsr_row, dtype)},
                  {"error_at", offsetof(tsr_row, error_at)}, {"block_at", offsetof(tsr_row, block_at)}};
    for (size_t i = 0; i < sizeof kTexts / sizeof *kTexts; i++) {
        t->text_at = kTexts[i].at;
        write_column(text, kTexts[i].key, t, text_cell);
    }
}

/* Writes "in_layer" and "in_module", the indices of each row's groups. */
static void write_groups(tsr_text *text, const tsr_overview *o, table *t)
{
    static const struct {
        const char *key;
        tsr_grouping grouping;
    } kGroupings[] = {{"in_layer", TSR_BY_LAYER}, {"in_module", TSR_BY_MODULE}};
    const size_t n = t->result->n_rows;
    uint32_t *const of = malloc((n + 1) * sizeof *of);
    if (of == NULL) {
        text->failed = true;
        return;
    }
    t->groups = of;
    for (size_t k = 0; k < sizeof kGroupings / sizeof *kGroupings; k++) {
        const tsr_groups *const groups = &o->groups[kGroupings[k].grouping];
        for (size_t i = 0; i < n; i++)
            of[i] = TSR_NO_NUMBER;
        for (uint32_t g = 0; g < groups->count; g++) {
            for (uint32_t i = 0; i < groups->items[g].count; i++)
                of[groups->order[groups->items[g].first + i]] = g;
        }
        write_column(text, kGroupings[k].key, t, group_cell);
    }
    t->groups = NULL;
    free(of);
}

void tsr_page_rows(tsr_text *text, const tsr_overview *overview, const tsr_page_choice *choice, const double *losses)
{
    table t = {.result = overview->result, .choice = choice, .losses = losses};
    tsr_json_begin_object(text, true);
    tsr_json_member_u64(text, "count", choice->count);
    tsr_json_member_u64(text, "left_out", t.result->n_rows - choice->count);
    write_texts(text, &t);
    write_column(text, "module", &t, module_cell);
    write_column(text, "layer", &t, layer_cell);
    write_column(text, "expert", &t, expert_cell);
    write_column(text, "series", &t, series_cell);
    write_column(text, "outcome", &t, outcome_cell);
    write_groups(text, overview, &t);
    if (losses != NULL)
        write_column(text, "loss_db", &t, loss_cell);
    tsr_json_member_object(text, "figures", true);
    for (t.figure = 0; t.figure < TSR_N_FIGURES; t.figure++)
        write_column(text, tsr_figure_of(t.figure)->key, &t, figure_cell);
    tsr_json_end_object(text);
    tsr_json_end_object(text);
}
