/* Reads importance from JSON. */
#include "formats/importance/importance.h"

#include "common/grow.h"
#include "formats/json/json.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_JSON_BYTES = 1 << 30 };

typedef struct values {
    tsr_importance *importance;
    float *items;
    size_t count, capacity;
} values;

static tsr_status read_value(values *v, tsr_json_reader *r, const char *module, tsr_err *err)
{
    tsr_json_kind kind;
    tsr_json_text span;
    char text[64];
    TSR_TRY(tsr_json_peek(r, &kind, err));
    TSR_TRY(tsr_json_skip(r, &span, err));
    if (kind != TSR_JSON_NUMBER || span.size >= sizeof text)
        return tsr_fail(err, TSR_E_FORMAT, "%s: '%s': value %zu of " TSR_IMPORTANCE_MEMBER " is not a number",
                        v->importance->path, module, v->count);
    memcpy(text, span.data, span.size);
    text[span.size] = '\0';
    if (!tsr_grow(&v->items, v->count, &v->capacity, sizeof *v->items))
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", v->importance->path);
    v->items[v->count++] = strtof(text, NULL);
    return TSR_OK;
}

/* Reads the array of a module, and adds its entry. */
static tsr_status read_values(values *v, tsr_json_reader *r, const char *module, tsr_err *err)
{
    tsr_importance *const m = v->importance;
    bool more;
    v->count = 0;
    TSR_TRY(tsr_json_enter_array(r, err));
    for (;;) {
        TSR_TRY(tsr_json_next_element(r, &more, err));
        if (!more)
            break;
        TSR_TRY(read_value(v, r, module, err));
    }
    unsigned char *const kept = tsr_arena_alloc(&m->arena, v->count * sizeof *v->items + 1);
    if (kept == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", m->path);
    if (v->count > 0)
        memcpy(kept, v->items, v->count * sizeof *v->items);
    return tsr_importance_add(
        m, &(tsr_importance_entry){.name = module, .matrices = 1, .cols = v->count, .values = kept}, err);
}

static tsr_status read_module(values *v, tsr_json_reader *r, const char *module, tsr_err *err)
{
    tsr_json_text key, span;
    bool more;
    TSR_TRY(tsr_json_enter_object(r, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(r, &key, &more, err));
        if (!more)
            return TSR_OK;
        if (tsr_json_is(key, TSR_IMPORTANCE_MEMBER))
            TSR_TRY(read_values(v, r, module, err));
        else
            TSR_TRY(tsr_json_skip(r, &span, err));
    }
}

static tsr_status read_modules(values *v, tsr_json_reader *r, tsr_err *err)
{
    tsr_json_text key;
    const char *module;
    bool more;
    TSR_TRY(tsr_json_enter_object(r, err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(r, &key, &more, err));
        if (!more)
            return tsr_json_finish(r, err);
        TSR_TRY(tsr_json_decode(r, key, &v->importance->arena, &module, err));
        TSR_TRY(read_module(v, r, module, err));
    }
}

tsr_status tsr_importance_read_json(tsr_importance *importance, tsr_err *err)
{
    const char *text;
    size_t size;
    TSR_TRY(tsr_read_file(importance->path, MAX_JSON_BYTES, &importance->arena, &text, &size, err));
    tsr_json_reader r = tsr_json_open(importance->path, text, size);
    values v = {.importance = importance};
    const tsr_status status = read_modules(&v, &r, err);
    free(v.items);
    return status;
}
