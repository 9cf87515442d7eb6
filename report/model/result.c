/* Appends items to a result, and finds rows. */
#include "report/model/result.h"

#include "common/grow.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *tsr_outcome_name(tsr_outcome outcome)
{
    static const char *const kNames[] = {[TSR_OUTCOME_NONE] = "measured",
                                         [TSR_OUTCOME_PASSED] = "passed",
                                         [TSR_OUTCOME_FAILED] = "failed",
                                         [TSR_OUTCOME_SKIPPED] = "skipped"};
    return kNames[outcome];
}

const char *tsr_verdict_word(tsr_outcome outcome)
{
    static const char *const kWords[] = {[TSR_OUTCOME_NONE] = "INFO",
                                         [TSR_OUTCOME_PASSED] = "PASS",
                                         [TSR_OUTCOME_FAILED] = "FAIL",
                                         [TSR_OUTCOME_SKIPPED] = "SKIP"};
    return kWords[outcome];
}

/* Makes room for one more item, as tsr_grow does, up to `most` items. */
static tsr_status make_room(const tsr_result *result, void *items, size_t count, size_t *capacity, size_t size,
                            size_t most, const char *what, tsr_err *err)
{
    if (count == most)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: more than %zu %s: no result of Tessera has that many",
                        result->path, most, what);
    return tsr_grow(items, count, capacity, size) ? TSR_OK : tsr_out_of_memory(err, "for the rows of a result");
}

void tsr_row_clear(tsr_row *row)
{
    *row = (tsr_row){.name = "", .place = tsr_place_of(""), .block_max = NAN, .bias = NAN};
    for (tsr_figure f = 0; f < TSR_N_FIGURES; f++)
        row->figures[f] = NAN;
}

double tsr_row_error(const tsr_row *row, tsr_figure figure)
{
    return isnan(row->figures[figure]) ? INFINITY : row->figures[figure];
}

const char *tsr_dtypes_text(tsr_arena *arena, const char *a, const char *b)
{
    if (a == NULL || b == NULL || strcmp(a, b) == 0)
        return a == NULL ? b : a;
    return tsr_arena_printf(arena, "%s to %s", a, b);
}

bool tsr_row_in_state(const tsr_row *row, const char *state)
{
    return row->note != NULL && strcmp(row->note, state) == 0;
}

size_t tsr_count_in_state(const tsr_result *result, const char *state)
{
    size_t n = 0;
    for (size_t i = 0; i < result->n_rows; i++)
        n += tsr_row_in_state(&result->rows[i], state);
    return n;
}

tsr_status tsr_result_add_row(tsr_result *result, uint32_t series, tsr_row **row, tsr_err *err)
{
    TSR_TRY(make_room(result, &result->rows, result->n_rows, &result->rows_capacity, sizeof **row, TSR_MAX_ROWS,
                      "tensors and judgements", err));
    *row = &result->rows[result->n_rows++];
    tsr_row_clear(*row);
    (*row)->series = series;
    return TSR_OK;
}

tsr_status tsr_result_add_judgement(tsr_result *result, const tsr_row *judgement, tsr_err *err)
{
    const bool by_subject = result->kind->by_subject;
    tsr_row *row;
    uint32_t at;
    TSR_TRY(tsr_result_series(result, by_subject ? judgement->what : judgement->kind, &at, err));
    TSR_TRY(tsr_result_add_row(result, at, &row, err));
    *row = *judgement;
    row->series = at;
    row->place = tsr_place_of(row->name);
    result->series[at].bounded = !by_subject && strcmp(row->kind, "quantization") != 0;
    return TSR_OK;
}

tsr_status tsr_result_add_skipped(tsr_result *result, const char *name, const char *why, tsr_err *err)
{
    tsr_row *row;
    uint32_t at;
    TSR_TRY(tsr_result_series(result, "skipped", &at, err));
    TSR_TRY(tsr_result_add_row(result, at, &row, err));
    row->name = name;
    row->note = why;
    row->outcome = TSR_OUTCOME_SKIPPED;
    row->place = tsr_place_of(name);
    return TSR_OK;
}

tsr_status tsr_result_add_finding(tsr_result *result, const tsr_result_finding *finding, tsr_err *err)
{
    TSR_TRY(make_room(result, &result->findings, result->n_findings, &result->findings_capacity, sizeof *finding,
                      TSR_MAX_ROWS, "findings", err));
    result->findings[result->n_findings++] = *finding;
    return TSR_OK;
}

tsr_status tsr_result_add_check(tsr_result *result, const char *name, uint64_t judged, tsr_err *err)
{
    TSR_TRY(make_room(result, &result->checks, result->n_checks, &result->checks_capacity, sizeof *result->checks,
                      TSR_MAX_CHECKS, "checks", err));
    result->checks[result->n_checks++] = (tsr_check_facts){name, judged};
    return TSR_OK;
}

tsr_status tsr_result_add_plan_row(tsr_result *result, const tsr_plan_row *row, tsr_err *err)
{
    TSR_TRY(make_room(result, &result->plan, result->n_plan, &result->plan_capacity, sizeof *row, TSR_MAX_PLAN_ROWS,
                      "budgets of a plan", err));
    result->plan[result->n_plan++] = *row;
    return TSR_OK;
}

tsr_status tsr_result_add_fact(tsr_result *result, tsr_facts *facts, const char *name, const char *value, tsr_err *err)
{
    tsr_arena *const arena = &result->arena;
    const char *const n = tsr_arena_dup(arena, name, strlen(name)), *const v =
                                                                        tsr_arena_dup(arena, value, strlen(value));
    if (n == NULL || v == NULL)
        return tsr_out_of_memory(err, NULL);
    TSR_TRY(make_room(result, &facts->items, facts->count, &facts->capacity, sizeof *facts->items, TSR_MAX_FACTS,
                      "members", err));
    facts->items[facts->count++] = (tsr_fact){n, v};
    return TSR_OK;
}

tsr_status tsr_result_series(tsr_result *result, const char *name, uint32_t *at, tsr_err *err)
{
    for (*at = 0; *at < result->n_series; (*at)++) {
        if (strcmp(result->series[*at].name, name) == 0)
            return TSR_OK;
    }
    const char *const copy = tsr_arena_dup(&result->arena, name, strlen(name));
    if (copy == NULL)
        return tsr_out_of_memory(err, NULL);
    TSR_TRY(make_room(result, &result->series, result->n_series, &result->series_capacity, sizeof *result->series,
                      TSR_MAX_SERIES, "kinds of rows", err));
    tsr_series *const series = &result->series[result->n_series++];
    *series = (tsr_series){.name = copy};
    tsr_row_clear(&series->whole);
    series->whole.name = "the whole";
    series->whole.series = *at;
    return TSR_OK;
}

void tsr_series_note_worst(tsr_series *series, const char *name, double relative)
{
    size_t at = series->n_worst;
    while (at > 0 && relative > series->worst[at - 1].relative)
        at--;
    if (at == TSR_SERIES_WORST)
        return;
    series->n_worst += series->n_worst < TSR_SERIES_WORST;
    memmove(&series->worst[at + 1], &series->worst[at], (series->n_worst - 1 - at) * sizeof *series->worst);
    series->worst[at].name = name;
    series->worst[at].relative = relative;
}

const tsr_check_text *tsr_check_text_of(const tsr_result *result, const char *check)
{
    for (const tsr_check_text *text = result->kind->checks; text != NULL && text->name != NULL; text++) {
        if (strcmp(text->name, check) == 0)
            return text;
    }
    return NULL;
}

const char *tsr_fact_of(const tsr_facts *facts, const char *name)
{
    for (size_t i = 0; i < facts->count; i++) {
        if (strcmp(facts->items[i].name, name) == 0)
            return facts->items[i].value;
    }
    return NULL;
}

const char *tsr_fact_shown(const tsr_fact *fact, char number[32])
{
    char *end;
    const double value = strtod(fact->value, &end);
    if (*end != '\0' || end == fact->value || strchr(fact->value, '.') == NULL || strlen(fact->value) < 9)
        return fact->value;
    snprintf(number, 32, "%.4g", value);
    return number;
}

int tsr_compare_rows(const tsr_result *a, const tsr_row *x, const tsr_result *b, const tsr_row *y)
{
    int order = strcmp(x->name, y->name);
    if (order == 0)
        order = strcmp(x->what == NULL ? "" : x->what, y->what == NULL ? "" : y->what);
    return order != 0 ? order : strcmp(a->series[x->series].name, b->series[y->series].name);
}

static int by_name(const void *a, const void *b, void *data)
{
    const tsr_result *const r = data;
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const int order = tsr_compare_rows(r, &r->rows[x], r, &r->rows[y]);
    return order != 0 ? order : (x > y) - (x < y);
}

uint32_t *tsr_rows_by_name(const tsr_result *result)
{
    uint32_t *const order = malloc((result->n_rows + 1) * sizeof *order);
    for (uint32_t i = 0; order != NULL && i < result->n_rows; i++)
        order[i] = i;
    if (order != NULL)
        qsort_r(order, result->n_rows, sizeof *order, by_name, (void *)result);
    return order;
}

const tsr_row *tsr_find_row(const tsr_result *result, const uint32_t *order, const char *name)
{
    size_t low = 0, high = result->n_rows;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(result->rows[order[middle]].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    const bool found = low < result->n_rows && strcmp(result->rows[order[low]].name, name) == 0;
    return found ? &result->rows[order[low]] : NULL;
}

void tsr_result_free(tsr_result *result)
{
    free(result->facts.items);
    free(result->limits.items);
    free(result->phases.items);
    free(result->series);
    free(result->rows);
    free(result->plan);
    free(result->checks);
    free(result->findings);
    tsr_arena_free(&result->arena);
    *result = (tsr_result){.path = NULL};
}
