/* Helpers shared by the readers of all result kinds. */
#include "report/read/result_kinds.h"

#include <math.h>
#include <stddef.h>

void tsr_finish_figures(double figures[TSR_N_FIGURES])
{
    const double relative = figures[TSR_FIGURE_RELATIVE];
    if (!isnan(figures[TSR_FIGURE_SQNR]))
        return;
    if (relative == 0)
        figures[TSR_FIGURE_SQNR] = INFINITY;
    else if (isnan(relative) && figures[TSR_FIGURE_DIFFER] > 0)
        figures[TSR_FIGURE_SQNR] = -INFINITY;
}

tsr_status tsr_read_facts(tsr_reading *r, const char *what, const tsr_field *fields, void *to, const char *prefix,
                          tsr_err *err)
{
    const tsr_rest rest = {.facts = &r->result->facts, .prefix = prefix};
    return tsr_read_object(r, what, fields, to, &rest, err);
}

tsr_status tsr_read_forward_baseline(tsr_reading *r, const char *prefix, tsr_err *err)
{
    tsr_json_kind kind;
    TSR_TRY(tsr_json_peek(&r->json, &kind, err));
    return kind == TSR_JSON_NULL ? tsr_json_skip(&r->json, NULL, err)
                                 : tsr_read_facts(r, "the baseline", NULL, NULL, prefix, err);
}

tsr_status tsr_read_limits(tsr_reading *r, void *to, tsr_err *err)
{
    tsr_result *const result = to;
    const tsr_rest rest = {.facts = &result->limits};
    return tsr_read_object(r, "the limits", NULL, NULL, &rest, err);
}

tsr_status tsr_read_phases(tsr_reading *r, void *to, tsr_err *err)
{
    tsr_result *const result = to;
    const tsr_rest rest = {.facts = &result->phases};
    return tsr_read_object(r, "the phases", NULL, NULL, &rest, err);
}

tsr_status tsr_read_finding(tsr_reading *r, void *to, tsr_err *err)
{
    typedef struct finding {
        const char *check, *where, *what;
    } finding;
    static const tsr_field kFields[] = {
        {"check", tsr_value_text, offsetof(finding, check), TSR_NEEDED},
        {"where", tsr_value_text, offsetof(finding, where), TSR_NEEDED},
        {"what", tsr_value_text, offsetof(finding, what), TSR_NEEDED},
        {0},
    };
    finding f = {0};
    (void)to;
    TSR_TRY(tsr_read_object(r, "a finding", kFields, &f, NULL, err));
    if (f.check == NULL || f.where == NULL || f.what == NULL)
        return tsr_refuse_value(r, err, "a finding without text");
    const tsr_result_finding made = {
        .check = f.check, .where = f.where, .text = f.what, .row = TSR_NO_ROW, .fatal = true};
    return tsr_result_add_finding(r->result, &made, err);
}

static tsr_status read_check(tsr_reading *r, const char *name, void *to, tsr_err *err)
{
    uint64_t judged;
    (void)to;
    TSR_TRY(tsr_json_read_u64(&r->json, &judged, err));
    return tsr_result_add_check(r->result, name, judged, err);
}

tsr_status tsr_read_judged(tsr_reading *r, void *to, tsr_err *err)
{
    return tsr_read_members(r, read_check, to, err);
}

tsr_status tsr_read_row(tsr_reading *r, const char *what, const tsr_field *fields, uint32_t series, tsr_row **row,
                        tsr_err *err)
{
    /* A local copy, because a nested reader may add rows and move the array. */
    tsr_row mine;
    tsr_row_clear(&mine);
    mine.series = series;
    const tsr_rest rest = {.figures = mine.figures};
    TSR_TRY(tsr_read_object(r, what, fields, &mine, &rest, err));
    if (mine.name == NULL)
        return tsr_refuse_value(r, err, "a name is null");
    tsr_finish_figures(mine.figures);
    mine.place = tsr_place_of(mine.name);
    TSR_TRY(tsr_result_add_row(r->result, series, row, err));
    **row = mine;
    return TSR_OK;
}

tsr_status tsr_read_whole(tsr_reading *r, const char *series, const char *prefix, tsr_err *err)
{
    uint32_t at;
    TSR_TRY(tsr_result_series(r->result, series, &at, err));
    tsr_series *const s = &r->result->series[at];
    const tsr_rest rest = {.figures = s->whole.figures, .facts = &r->result->facts, .prefix = prefix};
    s->has_whole = true;
    TSR_TRY(tsr_read_object(r, "the whole", NULL, NULL, &rest, err));
    tsr_finish_figures(s->whole.figures);
    return TSR_OK;
}

void tsr_row_text(tsr_text *text, const tsr_row *row)
{
    static const tsr_figure kShown[] = {TSR_FIGURE_SQNR,        TSR_FIGURE_RELATIVE,   TSR_FIGURE_WORST_BLOCK,
                                        TSR_FIGURE_MAX_ABS,     TSR_FIGURE_OF_BOUND,   TSR_FIGURE_OF_EXPECTED,
                                        TSR_FIGURE_KL_MEAN,     TSR_FIGURE_MISROUNDED, TSR_FIGURE_MISSCALED,
                                        TSR_FIGURE_NONFINITE_B, TSR_FIGURE_DIFFER};
    bool first = true;
    for (size_t i = 0; i < sizeof kShown / sizeof *kShown; i++) {
        const double value = row->figures[kShown[i]];
        const char *const at = kShown[i] == TSR_FIGURE_WORST_BLOCK ? row->block_at
                               : kShown[i] == TSR_FIGURE_MAX_ABS   ? row->error_at
                                                                   : NULL;
        if (isnan(value) || (tsr_figure_of(kShown[i])->count && value == 0))
            continue;
        tsr_text_printf(text, "%s%s ", first ? "" : ", ", tsr_figure_of(kShown[i])->title);
        tsr_figure_text(text, kShown[i], value);
        if (at != NULL && at[0] != '\0')
            tsr_text_printf(text, " at %s", at);
        first = false;
    }
}

tsr_status tsr_find_fault(tsr_reading *r, const char *check, uint32_t row, tsr_err *err)
{
    tsr_result *const result = r->result;
    const tsr_row *const x = &result->rows[row];
    tsr_text text = {0};
    if (x->what != NULL)
        tsr_text_printf(&text, "%s: ", x->what);
    if (x->note != NULL)
        tsr_text_printf(&text, "%s; ", x->note);
    tsr_row_text(&text, x);
    while (text.size > 0 && (text.data[text.size - 1] == ' ' || text.data[text.size - 1] == ';'))
        text.data[--text.size] = '\0';
    const char *const said =
        text.failed ? NULL : tsr_arena_dup(&result->arena, text.data == NULL ? "" : text.data, text.size);
    tsr_text_free(&text);
    const tsr_result_finding finding = {.check = check, .where = x->name, .text = said, .row = row, .fatal = true};
    return said == NULL ? tsr_out_of_memory(err, NULL) : tsr_result_add_finding(result, &finding, err);
}

static tsr_status read_error(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"code", tsr_value_count, offsetof(tsr_result, error_code), TSR_NEEDED},
        {"message", tsr_value_text, offsetof(tsr_result, error), TSR_NEEDED},
        {"tensor", tsr_value_text, offsetof(tsr_result, error_tensor), 0},
        {0},
    };
    const tsr_result *const result = to;
    TSR_TRY(tsr_read_object(r, "an error", kFields, to, NULL, err));
    return result->error == NULL || result->error_code == 0 ? tsr_refuse_value(r, err, "an error without text or code")
                                                            : TSR_OK;
}

tsr_status tsr_read_failed(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {TSR_HEAD_FIELDS, {"error", read_error, 0, TSR_NEEDED}, {0}};
    tsr_result *const result = to;
    TSR_TRY(tsr_read_facts(r, "the result", kFields, to, NULL, err));
    result->outcome = TSR_OUTCOME_FAILED;
    const tsr_result_finding finding = {.check = "error",
                                        .where = result->error_tensor == NULL ? "the run" : result->error_tensor,
                                        .text = result->error,
                                        .row = TSR_NO_ROW,
                                        .fatal = true};
    return tsr_result_add_finding(result, &finding, err);
}
