/* Reads results of `inspect`: a checkpoint, verdicts of loaders, or one tensor. */
#include "report/read/result_kinds.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- tallies ---- */

static tsr_status add_row(tsr_reading *r, const char *series, const char *name, tsr_row **row, tsr_err *err)
{
    uint32_t at;
    TSR_TRY(tsr_result_series(r->result, series, &at, err));
    TSR_TRY(tsr_result_add_row(r->result, at, row, err));
    (*row)->name = name;
    return TSR_OK;
}

/* Reads a tally. `series` is its title. */
static tsr_status read_tally(tsr_reading *r, const char *name, void *series, tsr_err *err)
{
    tsr_row *row;
    TSR_TRY(add_row(r, series, name, &row, err));
    const tsr_rest rest = {.figures = row->figures};
    return tsr_read_object(r, "a tally", NULL, NULL, &rest, err);
}

static tsr_status read_dtypes(tsr_reading *r, void *to, tsr_err *err)
{
    static char series[] = "dtype";
    (void)to;
    return tsr_read_members(r, read_tally, series, err);
}

static tsr_status read_parts(tsr_reading *r, void *to, tsr_err *err)
{
    static char series[] = "part";
    (void)to;
    return tsr_read_members(r, read_tally, series, err);
}

/* ---- facts in objects ---- */

static tsr_status read_scale_stats(tsr_reading *r, void *to, tsr_err *err)
{
    return tsr_read_facts(r, "facts", NULL, to, "scales, ", err);
}

static tsr_status read_quantization(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {{"scale_stats", read_scale_stats, 0, 0}, {0}};
    return tsr_read_facts(r, "facts", kFields, to, "quantization, ", err);
}

static tsr_status read_index(tsr_reading *r, void *to, tsr_err *err)
{
    tsr_json_kind kind;
    TSR_TRY(tsr_json_peek(&r->json, &kind, err));
    return kind == TSR_JSON_NULL ? tsr_json_skip(&r->json, NULL, err)
                                 : tsr_read_facts(r, "facts", NULL, to, "index, ", err);
}

static tsr_status read_unread(tsr_reading *r, void *to, tsr_err *err)
{
    return tsr_read_facts(r, "facts", NULL, to, "not read, ", err);
}

/* ---- findings ---- */

typedef struct issue {
    const char *severity, *loader, *tensor, *rule, *detail, *advice;
    double tp;
    uint64_t more;
} issue;

static tsr_status read_issue(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"severity", tsr_value_text, offsetof(issue, severity), TSR_NEEDED},
        {"loader", tsr_value_text, offsetof(issue, loader), 0},
        {"tp", tsr_value_number, offsetof(issue, tp), 0},
        {"tensor", tsr_value_text, offsetof(issue, tensor), 0},
        {"more", tsr_value_count, offsetof(issue, more), 0},
        {"rule", tsr_value_text, offsetof(issue, rule), TSR_NEEDED},
        {"detail", tsr_value_text, offsetof(issue, detail), TSR_NEEDED},
        {"advice", tsr_value_text, offsetof(issue, advice), 0},
        {0},
    };
    tsr_result *const result = r->result;
    issue f = {0};
    (void)to;
    TSR_TRY(tsr_read_object(r, "a finding", kFields, &f, NULL, err));
    if (f.severity == NULL || f.rule == NULL || f.detail == NULL)
        return tsr_refuse_value(r, err, "a finding without text");
    const bool fatal = strcmp(f.severity, "error") == 0;
    const char *const check =
        f.loader == NULL || *f.loader == '\0' ? f.rule : tsr_arena_printf(&result->arena, "%s: %s", f.loader, f.rule);
    char more[48] = "";
    if (f.more > 0)
        snprintf(more, sizeof more, " (and %llu more)", U64(f.more));
    const char *const text =
        tsr_arena_printf(&result->arena, "%s%s%s%s", f.detail, more, f.advice == NULL || *f.advice == '\0' ? "" : "; ",
                         f.advice == NULL ? "" : f.advice);
    if (check == NULL || text == NULL)
        return tsr_out_of_memory(err, NULL);
    const tsr_result_finding finding = {.check = check,
                                        .where = f.tensor == NULL ? "the checkpoint" : f.tensor,
                                        .text = text,
                                        .row = TSR_NO_ROW,
                                        .fatal = fatal};
    TSR_TRY(tsr_result_add_finding(result, &finding, err));
    if (fatal)
        result->outcome = TSR_OUTCOME_FAILED;
    return TSR_OK;
}

/* ---- loaders ---- */

/* Reads {"1": true, "2": false}: whether the loader accepts the checkpoint, by the size of tensor parallelism. */
static tsr_status read_size(tsr_reading *r, const char *size, void *loader, tsr_err *err)
{
    tsr_row *row;
    bool takes = false;
    TSR_TRY(add_row(r, "loader", loader, &row, err));
    row->what = tsr_arena_printf(&r->result->arena, "tensor parallelism of %s", size);
    if (row->what == NULL)
        return tsr_out_of_memory(err, NULL);
    TSR_TRY(tsr_value_flag(r, &takes, err));
    row->outcome = takes ? TSR_OUTCOME_PASSED : TSR_OUTCOME_FAILED;
    row->note = takes ? NULL : "cannot load it";
    if (!takes)
        r->result->outcome = TSR_OUTCOME_FAILED;
    return TSR_OK;
}

static tsr_status read_loader(tsr_reading *r, const char *name, void *to, tsr_err *err)
{
    (void)to;
    return tsr_read_members(r, read_size, (void *)(uintptr_t)name, err);
}

static tsr_status read_loaders(tsr_reading *r, void *to, tsr_err *err)
{
    return tsr_read_members(r, read_loader, to, err);
}

tsr_status tsr_read_inspect(tsr_reading *r, void *to, tsr_err *err)
{
    static const tsr_field kFields[] = {
        TSR_HEAD_FIELDS,
        {"dtypes", read_dtypes, 0, TSR_NEEDED},
        {"parts", read_parts, 0, TSR_NEEDED},
        {"index", read_index, 0, 0},
        {"unread", read_unread, 0, 0},
        {"quantization", read_quantization, 0, 0},
        {"findings", read_issue, 0, TSR_NEEDED | TSR_EACH},
        {"load_findings", read_issue, 0, TSR_EACH},
        {"can_load", read_loaders, 0, 0},
        {0},
    };
    r->result->outcome = TSR_OUTCOME_PASSED;
    return tsr_read_facts(r, "the result", kFields, to, NULL, err);
}

/* ---- a tensor ---- */

tsr_status tsr_read_inspect_tensor(tsr_reading *r, void *to, tsr_err *err)
{
    typedef struct tensor {
        tsr_row row;
        tsr_result *result;
        const char *schema, *version;
    } tensor;
    static const tsr_field kFields[] = {
        {"schema", tsr_value_text, offsetof(tensor, schema), TSR_NEEDED},
        {"version", tsr_value_text, offsetof(tensor, version), TSR_NEEDED},
        {"name", tsr_value_text, offsetof(tensor, row.name), TSR_NEEDED},
        {"dtype", tsr_value_text, offsetof(tensor, row.dtype), TSR_NEEDED},
        {"shape", tsr_value_place, offsetof(tensor, row.shape), TSR_NEEDED},
        {"file", tsr_value_text, offsetof(tensor, row.file), 0},
        {0},
    };
    tsr_result *const result = to;
    tensor t = {.result = result};
    uint32_t at;
    tsr_row_clear(&t.row);
    const tsr_rest rest = {.figures = t.row.figures, .facts = &result->facts};
    TSR_TRY(tsr_read_object(r, "the result", kFields, &t, &rest, err));
    TSR_TRY(tsr_result_series(result, "", &at, err));
    if (t.row.name == NULL)
        return tsr_refuse_value(r, err, "a name is null");
    tsr_row *row;
    TSR_TRY(tsr_result_add_row(result, at, &row, err));
    *row = t.row;
    row->place = tsr_place_of(row->name);
    result->schema = t.schema;
    result->version = t.version;
    return TSR_OK;
}
