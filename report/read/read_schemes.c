/* Reads results of `compare-schemes`, `plan-schemes` and `sensitivities`.
 *
 * The first has a series for each scheme, with figures of the model and of each tensor. The second has each tensor
 * in the series of the scheme chosen for it. The third has a row for each group of weights. */
#include "report/read/result_kinds.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

typedef struct cost {
    const char *scheme, *options;
    double of_bf16;
    uint64_t not_taken;
    double figures[TSR_N_FIGURES];
} cost;

static tsr_status read_cost(tsr_reading *r, cost *c, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"scheme", tsr_value_text, offsetof(cost, scheme), TSR_NEEDED},
        {"options", tsr_value_text, offsetof(cost, options), 0},
        {"ratio_to_bf16", tsr_value_number, offsetof(cost, of_bf16), 0},
        {"not_taken", tsr_value_count, offsetof(cost, not_taken), 0},
        {0},
    };
    tsr_row none;
    tsr_row_clear(&none);
    *c = (cost){.scheme = NULL};
    memcpy(c->figures, none.figures, sizeof c->figures);
    const tsr_rest rest = {.figures = c->figures};
    TSR_TRY(tsr_read_object(r, "a scheme", kFields, c, &rest, err));
    tsr_finish_figures(c->figures);
    return c->scheme != NULL ? TSR_OK : tsr_refuse_value(r, err, "a scheme is null");
}

static tsr_status read_total(tsr_reading *r, void *to, tsr_err *err)
{
    cost c;
    uint32_t at;
    (void)to;
    TSR_TRY(read_cost(r, &c, err));
    TSR_TRY(tsr_result_series(r->result, c.scheme, &at, err));
    tsr_series *const series = &r->result->series[at];
    series->has_whole = true;
    series->of_bf16 = c.of_bf16;
    series->not_taken = c.not_taken;
    series->whole.note = c.options;
    memcpy(series->whole.figures, c.figures, sizeof c.figures);
    return TSR_OK;
}

static tsr_status add_tensor(tsr_reading *r, const char *name, const cost *c, tsr_err *err)
{
    uint32_t at;
    TSR_TRY(tsr_result_series(r->result, c->scheme, &at, err));
    tsr_row *row;
    TSR_TRY(tsr_result_add_row(r->result, at, &row, err));
    row->name = name;
    row->place = tsr_place_of(name);
    memcpy(row->figures, c->figures, sizeof row->figures);
    tsr_series_note_worst(&r->result->series[at], name, c->figures[TSR_FIGURE_RELATIVE]);
    return TSR_OK;
}

/* ---- compare-schemes ---- */

typedef struct compared {
    const char *name;
    uint64_t bytes;
} compared;

static tsr_status read_of_tensor(tsr_reading *r, void *to, tsr_err *err)
{
    const compared *const t = to;
    cost c;
    TSR_TRY(read_cost(r, &c, err));
    if (t->name == NULL)
        return tsr_refuse_value(r, err, "expected the name of a tensor before its schemes");
    return add_tensor(r, t->name, &c, err);
}

static tsr_status read_compared(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"name", tsr_value_text, offsetof(compared, name), TSR_NEEDED},
        {"bytes", tsr_value_count, offsetof(compared, bytes), 0},
        {"schemes", read_of_tensor, 0, TSR_NEEDED | TSR_EACH},
        {0},
    };
    compared t = {.name = NULL};
    (void)to;
    return tsr_read_object(r, "a tensor", kFields, &t, NULL, err);
}

static tsr_status read_suggested(tsr_reading *r, void *to, tsr_err *err)
{
    return tsr_read_facts(r, "what is suggested", NULL, to, "suggested, ", err);
}

tsr_status tsr_read_compare_schemes(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"schemes", read_total, 0, TSR_NEEDED | TSR_EACH},
        {"suggested", read_suggested, 0, 0},
        {"tensors", read_compared, 0, TSR_NEEDED | TSR_EACH},
        {0},
    };
    return tsr_read_facts(r, "the result", kFields, to, NULL, err);
}

/* ---- plan-schemes ---- */

/* A group of tensors with one scheme. Its tensors follow it in the file. */
typedef struct group {
    cost chosen;
    size_t first; /* its first row */
} group;

static tsr_status read_name(tsr_reading *r, void *to, tsr_err *err)
{
    const group *const g = to;
    const char *name;
    TSR_TRY(tsr_value_text(r, &name, err));
    if (name == NULL || g->chosen.scheme == NULL)
        return tsr_refuse_value(r, err, "expected a name after the scheme of its group");
    return add_tensor(r, name, &g->chosen, err);
}

/* Reads the cost of the scheme chosen for the group. The costs of other schemes are skipped. */
static tsr_status read_option(tsr_reading *r, void *to, tsr_err *err)
{
    group *const g = to;
    cost c;
    TSR_TRY(read_cost(r, &c, err));
    if (g->chosen.scheme != NULL && strcmp(c.scheme, g->chosen.scheme) == 0)
        memcpy(g->chosen.figures, c.figures, sizeof c.figures);
    return TSR_OK;
}

/* Removes bytes and error from rows [first, end). They belong to the group, and are known for a tensor only if it is
 * the whole group. */
static void leave_out_shared(tsr_result *result, size_t first)
{
    if (result->n_rows - first < 2)
        return;
    for (size_t i = first; i < result->n_rows; i++)
        result->rows[i].figures[TSR_FIGURE_BYTES] = result->rows[i].figures[TSR_FIGURE_ERROR] = NAN;
}

static void add_to_series(tsr_result *result, const cost *c, size_t tensors)
{
    uint32_t at;
    if (tensors == 0 || tsr_result_series(result, c->scheme, &at, NULL) != TSR_OK)
        return;
    tsr_series *const s = &result->series[at];
    const double counted[][2] = {{TSR_FIGURE_TENSORS, (double)tensors},
                                 {TSR_FIGURE_BYTES, c->figures[TSR_FIGURE_BYTES]},
                                 {TSR_FIGURE_ERROR, c->figures[TSR_FIGURE_ERROR]}};
    s->has_whole = true;
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++) {
        double *const sum = &s->whole.figures[(int)counted[i][0]];
        *sum = (isnan(*sum) ? 0 : *sum) + counted[i][1];
    }
}

static tsr_status read_group(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"scheme", tsr_value_text, offsetof(group, chosen.scheme), TSR_NEEDED},
        {"options", read_option, 0, TSR_EACH},
        {"tensors", read_name, 0, TSR_NEEDED | TSR_EACH},
        {0},
    };
    group g = {.first = r->result->n_rows};
    tsr_row none;
    (void)to;
    tsr_row_clear(&none);
    memcpy(g.chosen.figures, none.figures, sizeof none.figures);
    TSR_TRY(tsr_read_object(r, "a group", kFields, &g, NULL, err));
    leave_out_shared(r->result, g.first);
    add_to_series(r->result, &g.chosen, r->result->n_rows - g.first);
    return TSR_OK;
}

static tsr_status read_plan_row(tsr_reading *r, tsr_plan_kind kind, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"bytes", tsr_value_count, offsetof(tsr_plan_row, bytes), TSR_NEEDED},
        {"bits_per_weight", tsr_value_number, offsetof(tsr_plan_row, bits), TSR_NEEDED},
        {"error", tsr_value_number, offsetof(tsr_plan_row, error), TSR_NEEDED},
        {"schemes", tsr_value_text, offsetof(tsr_plan_row, schemes), 0},
        {0},
    };
    tsr_plan_row row = {.kind = kind};
    TSR_TRY(tsr_read_object(r, "a choice", kFields, &row, NULL, err));
    return tsr_result_add_plan_row(r->result, &row, err);
}

static tsr_status read_budget(tsr_reading *r, void *to, tsr_err *err)
{
    (void)to;
    return read_plan_row(r, TSR_PLAN_BUDGET, err);
}

static tsr_status read_alone(tsr_reading *r, void *to, tsr_err *err)
{
    (void)to;
    return read_plan_row(r, TSR_PLAN_ALONE, err);
}

tsr_status tsr_read_plan_schemes(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"judged", tsr_read_judged, 0, 0},
        {"curve", read_budget, 0, TSR_EACH},
        {"alone", read_alone, 0, TSR_EACH},
        {"groups", read_group, 0, TSR_NEEDED | TSR_EACH},
        {0},
    };
    return tsr_read_facts(r, "the result", kFields, to, NULL, err);
}

/* ---- sensitivities ---- */

static tsr_status read_sensitivity(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {{"name", tsr_value_text, offsetof(tsr_row, name), TSR_NEEDED}, {0}};
    uint32_t at;
    tsr_row *row;
    (void)to;
    TSR_TRY(tsr_result_series(r->result, "groups, each tried alone", &at, err));
    return tsr_read_row(r, "a group", kFields, at, &row, err);
}

tsr_status tsr_read_sensitivities(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"groups", read_sensitivity, 0, TSR_NEEDED | TSR_EACH},
        {0},
    };
    return tsr_read_facts(r, "the result", kFields, to, NULL, err);
}
