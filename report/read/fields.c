/* Reads JSON objects by tables, with the pull reader. */
#include "report/read/fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NUMBER = 64, MAX_PLACE = 256, MAX_FACT = 4096 };

tsr_status tsr_refuse_value(const tsr_reading *r, tsr_err *err, const char *what)
{
    return tsr_fail(err, TSR_E_FORMAT, "%s: at byte %zu: %s; the result is invalid: run the command again",
                    r->json.name, r->json.pos, what);
}

/* ---- values ---- */

static tsr_status is_null(tsr_reading *r, bool *null, tsr_err *err)
{
    tsr_json_kind kind;
    TSR_TRY(tsr_json_peek(&r->json, &kind, err));
    *null = kind == TSR_JSON_NULL;
    return *null ? tsr_json_skip(&r->json, NULL, err) : TSR_OK;
}

tsr_status tsr_value_text(tsr_reading *r, void *to, tsr_err *err)
{
    bool null;
    *(const char **)to = NULL;
    TSR_TRY(is_null(r, &null, err));
    return null ? TSR_OK : tsr_json_read_text(&r->json, &r->result->arena, to, err);
}

tsr_status tsr_value_number(tsr_reading *r, void *to, tsr_err *err)
{
    double *const number = to;
    tsr_json_kind kind;
    tsr_json_text span;
    char copy[MAX_NUMBER];
    *number = NAN;
    TSR_TRY(tsr_json_peek(&r->json, &kind, err));
    if (kind != TSR_JSON_NUMBER && kind != TSR_JSON_NULL)
        return tsr_refuse_value(r, err, "expected a number");
    TSR_TRY(tsr_json_skip(&r->json, &span, err));
    if (kind == TSR_JSON_NULL)
        return TSR_OK;
    if (span.size >= sizeof copy)
        return tsr_refuse_value(r, err, "a number has too many digits");
    memcpy(copy, span.data, span.size);
    copy[span.size] = '\0';
    *number = strtod(copy, NULL);
    return isfinite(*number) ? TSR_OK : tsr_refuse_value(r, err, "a number exceeds the range of a double");
}

tsr_status tsr_value_count(tsr_reading *r, void *to, tsr_err *err)
{
    return tsr_json_read_u64(&r->json, to, err);
}

tsr_status tsr_value_flag(tsr_reading *r, void *to, tsr_err *err)
{
    tsr_json_kind kind;
    TSR_TRY(tsr_json_peek(&r->json, &kind, err));
    if (kind != TSR_JSON_TRUE && kind != TSR_JSON_FALSE)
        return tsr_refuse_value(r, err, "expected true or false");
    *(bool *)to = kind == TSR_JSON_TRUE;
    return tsr_json_skip(&r->json, NULL, err);
}

tsr_status tsr_value_passed(tsr_reading *r, void *to, tsr_err *err)
{
    bool passed = false;
    TSR_TRY(tsr_value_flag(r, &passed, err));
    *(tsr_outcome *)to = passed ? TSR_OUTCOME_PASSED : TSR_OUTCOME_FAILED;
    return TSR_OK;
}

tsr_status tsr_value_place(tsr_reading *r, void *to, tsr_err *err)
{
    tsr_json_kind kind;
    tsr_json_text span;
    TSR_TRY(tsr_json_peek(&r->json, &kind, err));
    if (kind != TSR_JSON_ARRAY)
        return tsr_value_text(r, to, err);
    TSR_TRY(tsr_json_skip(&r->json, &span, err));
    if (span.size > MAX_PLACE)
        return tsr_refuse_value(r, err, "an index with too many numbers");
    for (size_t i = 0; i < span.size; i++) {
        if (strchr("0123456789[], \n\r\t-", span.data[i]) == NULL)
            return tsr_refuse_value(r, err, "expected a list of integers");
    }
    char *const copy = tsr_arena_dup(&r->result->arena, span.data, span.size);
    *(const char **)to = copy;
    return copy == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
}

tsr_status tsr_read_array(tsr_reading *r, tsr_value_fn *element, void *to, tsr_err *err)
{
    bool more;
    TSR_TRY(tsr_json_enter_array(&r->json, err));
    for (;;) {
        TSR_TRY(tsr_json_next_element(&r->json, &more, err));
        if (!more)
            return TSR_OK;
        TSR_TRY(element(r, to, err));
    }
}

tsr_status tsr_read_members(tsr_reading *r, tsr_member_fn *member, void *to, tsr_err *err)
{
    bool more;
    TSR_TRY(tsr_json_enter_object(&r->json, err));
    for (;;) {
        tsr_json_text key;
        const char *name;
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, err));
        if (!more)
            return TSR_OK;
        TSR_TRY(tsr_json_decode(&r->json, key, &r->result->arena, &name, err));
        TSR_TRY(member(r, name, to, err));
    }
}

/* ---- objects ---- */

/* Members seen so far: a bit for each field and figure, and the table row to try first for the next key. Objects of
 * one kind usually have their members in one order. */
typedef struct seen {
    uint64_t fields, figures;
    size_t field;
    tsr_figure figure;
} seen;

static tsr_status mark(tsr_reading *r, uint64_t *bits, size_t at, const char *key, tsr_err *err)
{
    if ((*bits >> at & 1) != 0) {
        char what[128];
        snprintf(what, sizeof what, "duplicate member '%s' in one object; readers disagree on which one counts", key);
        return tsr_refuse_value(r, err, what);
    }
    *bits |= (uint64_t)1 << at;
    return TSR_OK;
}

static bool find_field(const tsr_field *fields, size_t n, tsr_json_text key, size_t *at)
{
    for (size_t i = 0; i < n; i++) {
        const size_t k = (*at + i) % n;
        if (tsr_json_is(key, fields[k].key)) {
            *at = k;
            return true;
        }
    }
    return false;
}

static bool find_figure(tsr_json_text key, tsr_figure *at)
{
    for (unsigned i = 0; i < TSR_N_FIGURES; i++) {
        const tsr_figure k = (*at + i) % TSR_N_FIGURES;
        if (tsr_json_is(key, tsr_figure_of(k)->key)) {
            *at = k;
            return true;
        }
    }
    return false;
}

static tsr_status read_figure(tsr_reading *r, tsr_figure figure, double *to, tsr_err *err)
{
    TSR_TRY(tsr_value_number(r, to, err));
    if (tsr_figure_of(figure)->count && (*to < 0 || *to != floor(*to)))
        return tsr_refuse_value(r, err, "expected a non-negative integer");
    return TSR_OK;
}

/* Reads a member that is not in the table. A string, number, true or false becomes a fact. */
static tsr_status read_rest(tsr_reading *r, tsr_json_text key, const tsr_rest *rest, tsr_err *err)
{
    tsr_json_kind kind;
    tsr_json_text span;
    tsr_arena *const arena = &r->result->arena;
    const char *name, *value = NULL;
    TSR_TRY(tsr_json_peek(&r->json, &kind, err));
    if (rest == NULL || rest->facts == NULL || kind == TSR_JSON_OBJECT || kind == TSR_JSON_ARRAY ||
        kind == TSR_JSON_NULL)
        return tsr_json_skip(&r->json, NULL, err);
    if (kind == TSR_JSON_STRING) {
        TSR_TRY(tsr_value_text(r, &value, err));
    } else {
        TSR_TRY(tsr_json_skip(&r->json, &span, err));
        value = tsr_arena_dup(arena, span.data, span.size < MAX_FACT ? span.size : MAX_FACT);
    }
    TSR_TRY(tsr_json_decode(&r->json, key, arena, &name, err));
    if (rest->prefix != NULL)
        name = tsr_arena_printf(arena, "%s%s", rest->prefix, name);
    if (name == NULL || value == NULL)
        return tsr_out_of_memory(err, NULL);
    if (tsr_fact_of(rest->facts, name) != NULL)
        return tsr_refuse_value(r, err, "duplicate member in one object; readers disagree on which one counts");
    return tsr_result_add_fact(r->result, rest->facts, name, value, err);
}

tsr_status tsr_read_object(tsr_reading *r, const char *what, const tsr_field *fields, void *to, const tsr_rest *rest,
                           tsr_err *err)
{
    seen s = {0};
    size_t n = 0;
    while (fields != NULL && fields[n].key != NULL)
        n++;
    TSR_TRY(tsr_json_enter_object(&r->json, err));
    for (;;) {
        tsr_json_text key;
        bool more;
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, err));
        if (!more)
            break;
        if (n > 0 && find_field(fields, n, key, &s.field)) {
            const tsr_field *const f = &fields[s.field];
            TSR_TRY(mark(r, &s.fields, s.field, f->key, err));
            TSR_TRY((f->is & TSR_EACH) != 0 ? tsr_read_array(r, f->read, (char *)to + f->at, err)
                                            : f->read(r, (char *)to + f->at, err));
        } else if (rest != NULL && rest->figures != NULL && find_figure(key, &s.figure)) {
            TSR_TRY(mark(r, &s.figures, s.figure, tsr_figure_of(s.figure)->key, err));
            TSR_TRY(read_figure(r, s.figure, &rest->figures[s.figure], err));
        } else {
            TSR_TRY(read_rest(r, key, rest, err));
        }
    }
    for (size_t i = 0; i < n; i++) {
        if ((fields[i].is & TSR_NEEDED) != 0 && (s.fields >> i & 1) == 0) {
            char text[128];
            snprintf(text, sizeof text, "%s ends without '%s'", what, fields[i].key);
            return tsr_refuse_value(r, err, text);
        }
    }
    return TSR_OK;
}
