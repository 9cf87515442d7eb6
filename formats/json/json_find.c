/* Finds single values in a JSON text by path, and decodes them. */
#include "formats/json/json.h"

#include <string.h>

tsr_status tsr_json_read_text(tsr_json_reader *r, tsr_arena *arena, const char **out, tsr_err *err)
{
    tsr_json_text span;
    TSR_TRY(tsr_json_read_string(r, &span, err));
    return tsr_json_decode(r, span, arena, out, err);
}

const char *tsr_json_string_of(tsr_json_text value, tsr_arena *arena)
{
    tsr_json_reader r = tsr_json_open("", value.data, value.size);
    const char *string;
    return tsr_json_read_text(&r, arena, &string, NULL) == TSR_OK ? string : NULL;
}

bool tsr_json_u64_of(tsr_json_text value, uint64_t *number)
{
    tsr_json_reader r = tsr_json_open("", value.data, value.size);
    return tsr_json_read_u64(&r, number, NULL) == TSR_OK;
}

bool tsr_json_find(const char *text, size_t size, const char *path, tsr_json_text *value)
{
    tsr_json_reader r = tsr_json_open("", text, size);
    for (;;) {
        const char *const dot = strchrnul(path, '.');
        bool more, found = false;
        if (tsr_json_enter_object(&r, NULL) != TSR_OK)
            return false;
        while (!found) {
            tsr_json_text key;
            if (tsr_json_next_member(&r, &key, &more, NULL) != TSR_OK || !more)
                return false;
            found = tsr_json_same(key, (tsr_json_text){.data = path, .size = (size_t)(dot - path)});
            if (!found && tsr_json_skip(&r, NULL, NULL) != TSR_OK)
                return false;
        }
        if (*dot == '\0')
            return tsr_json_skip(&r, value, NULL) == TSR_OK;
        path = dot + 1;
    }
}

const char *tsr_json_find_string(const char *text, size_t size, const char *path, tsr_arena *arena)
{
    tsr_json_text span;
    if (!tsr_json_find(text, size, path, &span))
        return NULL;
    return tsr_json_string_of(span, arena);
}

bool tsr_json_find_u64(const char *text, size_t size, const char *path, uint64_t *value)
{
    tsr_json_text span;
    return tsr_json_find(text, size, path, &span) && tsr_json_u64_of(span, value);
}

bool tsr_json_get(tsr_json_text object, const char *path, tsr_json_text *value)
{
    return object.data != NULL && tsr_json_find(object.data, object.size, path, value) && !tsr_json_is(*value, "null");
}

bool tsr_json_says(tsr_json_text object, const char *path, const char *literal)
{
    tsr_json_text value;
    return tsr_json_get(object, path, &value) && tsr_json_is(value, literal);
}

tsr_json_reader tsr_json_members(tsr_json_text object)
{
    tsr_json_reader r = tsr_json_open("", object.data, object.size);
    if (tsr_json_enter_object(&r, NULL) != TSR_OK)
        r.depth = 0;
    return r;
}

bool tsr_json_member(tsr_json_reader *r, tsr_json_text *key, tsr_json_text *value)
{
    bool more;
    return r->depth > 0 && tsr_json_next_member(r, key, &more, NULL) == TSR_OK && more &&
           tsr_json_skip(r, value, NULL) == TSR_OK;
}
