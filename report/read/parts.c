/* Splits a file of several results and reads each of them. */
#include "report/read/parts.h"

#include "report/read/read.h"
#include "report/read/result_kinds.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define SCHEMA "tessera-verify-all/1"

static const tsr_result_kind kNotApplicable = {SCHEMA, "verify", NULL, true, false, NULL};

/* One kind of checks in the file. */
typedef struct part {
    const char *status, *reason;
    size_t begin, end; /* position of its result in the text; end 0: none */
} part;

/* State of a reader that is collecting results. */
typedef struct parts {
    tsr_result *results;
    size_t n;
    const char *version;
} parts;

bool tsr_has_parts(const char *text, size_t size)
{
    tsr_json_text value;
    return tsr_json_find(text, size, "schema", &value) && tsr_json_is(value, "\"" SCHEMA "\"") &&
           !tsr_json_find(text, size, "error", &value);
}

static tsr_status read_span(tsr_reading *r, void *to, tsr_err *err)
{
    part *const p = to;
    tsr_json_kind kind;
    TSR_TRY(tsr_json_peek(&r->json, &kind, err));
    p->begin = r->json.pos;
    TSR_TRY(tsr_json_skip(&r->json, NULL, err));
    p->end = kind == TSR_JSON_OBJECT ? r->json.pos : 0;
    return TSR_OK;
}

/* Adds a result that only gives the reason why there is none. */
static tsr_status add_reason(tsr_reading *r, parts *to, const char *name, const part *p, tsr_err *err)
{
    tsr_result *const result = &to->results[to->n++];
    tsr_row *row;
    uint32_t series;
    *result = (tsr_result){.path = r->json.name, .schema = SCHEMA, .kind = &kNotApplicable, .command = ""};
    result->outcome = TSR_OUTCOME_SKIPPED;
    snprintf(result->title, sizeof result->title, "verify %.32s", name);
    result->version = tsr_arena_dup(&result->arena, to->version, strlen(to->version));
    TSR_TRY(tsr_result_series(result, "not applicable", &series, err));
    TSR_TRY(tsr_result_add_row(result, series, &row, err));
    row->name = "the checkpoint";
    row->note = tsr_arena_dup(&result->arena, p->reason, strlen(p->reason));
    row->outcome = TSR_OUTCOME_SKIPPED;
    return result->version == NULL || row->note == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
}

static tsr_status read_part(tsr_reading *r, const char *name, void *context, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"status", tsr_value_text, offsetof(part, status), TSR_NEEDED},
        {"reason", tsr_value_text, offsetof(part, reason), 0},
        {"result", read_span, 0, 0},
        {0},
    };
    parts *const to = context;
    part p = {.status = NULL};
    if (to->version == NULL)
        return tsr_refuse_value(r, err, "a version is null");
    TSR_TRY(tsr_read_object(r, "a kind of checks", kFields, &p, NULL, err));
    if (to->n == TSR_MAX_PARTS)
        return tsr_refuse_value(r, err, "more kinds of checks than exist");
    const bool applies = p.status == NULL || strcmp(p.status, "not applicable") != 0;
    if (p.status == NULL || (applies ? p.end == 0 : p.reason == NULL))
        return tsr_refuse_value(r, err, "a kind of checks has neither a result nor a reason why it has none");
    if (!applies)
        return add_reason(r, to, name, &p, err);
    const tsr_status status =
        tsr_result_read_text(&to->results[to->n], r->json.name, r->json.text + p.begin, p.end - p.begin, err);
    if (status != TSR_OK)
        return tsr_prepend(err, status, "of kind '%.32s', which begins at byte %zu", name, p.begin);
    to->n++;
    return TSR_OK;
}

static tsr_status read_parts(tsr_reading *r, void *to, tsr_err *err)
{
    return tsr_read_members(r, read_part, to, err);
}

static tsr_status read_whole(parts *to, tsr_reading *r, tsr_err *err)
{
    static const tsr_field kFields[] = {
        {"version", tsr_value_text, offsetof(parts, version), TSR_NEEDED},
        {"kinds", read_parts, 0, TSR_NEEDED},
        {0},
    };
    TSR_TRY(tsr_read_object(r, "the result", kFields, to, NULL, err));
    TSR_TRY(tsr_json_finish(&r->json, err));
    return to->n > 0 ? TSR_OK : tsr_refuse_value(r, err, "no kind of checks");
}

tsr_status tsr_parts_read(tsr_result *results, size_t *n, const char *path, const char *text, size_t size, tsr_err *err)
{
    tsr_result names = {.path = path}; /* owns the arena of temporary data */
    tsr_reading r = {.json = tsr_json_open(path, text, size), .result = &names};
    parts to = {.results = results, .version = ""};
    const tsr_status status = read_whole(&to, &r, err);
    for (size_t i = 0; i < to.n && status != TSR_OK; i++)
        tsr_result_free(&results[i]);
    tsr_result_free(&names);
    *n = status == TSR_OK ? to.n : 0;
    return status;
}
