/* Edits a JSON object: finds a member, or the end of the last one, and writes there. */
#include "formats/json/json_edit.h"

#include "formats/json/json.h"
#include "formats/json/json_write.h"

#include <stdlib.h>
#include <string.h>

/* Byte positions of the members of the object that is edited. */
typedef struct layout {
    size_t open;       /* just after '{' */
    size_t first;      /* where the first member begins; 0 if there is none */
    size_t last;       /* where the last member ends; 0 if there is none */
    tsr_json_text old; /* the current value of the edited member; NULL if it does not exist */
    size_t from;       /* where the edited member begins */
    size_t before;     /* where the previous member ends; for the first, just after '{' */
    size_t after;      /* where the next member begins; 0 for the last */
} layout;

static tsr_status find_members(layout *l, const char *config, size_t size, const char *key, tsr_err *err)
{
    tsr_json_reader r = tsr_json_open("config.json", config, size);
    *l = (layout){0};
    bool more;
    TSR_TRY(tsr_json_enter_object(&r, err));
    l->open = r.pos;
    for (;;) {
        tsr_json_text name, value;
        TSR_TRY(tsr_json_next_member(&r, &name, &more, err));
        if (!more)
            return TSR_OK;
        const size_t begin = (size_t)(name.data - config) - 1;
        if (l->first == 0)
            l->first = begin;
        if (l->old.data != NULL && l->after == 0)
            l->after = begin;
        TSR_TRY(tsr_json_skip(&r, &value, err));
        if (tsr_json_is(name, key)) {
            l->old = value;
            l->from = begin;
            l->before = l->last == 0 ? l->open : l->last;
            l->after = 0;
        }
        l->last = r.pos;
    }
}

tsr_status tsr_json_edit_set(tsr_text *out, const char *config, size_t size, const char *key, const char *value,
                             tsr_err *err)
{
    layout l;
    TSR_TRY(find_members(&l, config, size, key, err));
    /* New members use the white space before the first member. */
    const size_t gap = l.first == 0 ? 0 : l.first - l.open;
    size_t rest;
    if (l.old.data != NULL) {
        const size_t at = (size_t)(l.old.data - config);
        tsr_text_append(out, config, at);
        rest = at + l.old.size;
    } else {
        rest = l.last == 0 ? l.open : l.last;
        tsr_text_append(out, config, rest);
        if (l.last != 0)
            tsr_text_append(out, ",", 1);
        tsr_text_append(out, config + l.open, gap);
        tsr_json_quoted(out, key);
        tsr_text_append(out, ": ", 2);
    }
    const char *const newline = memrchr(config + l.open, '\n', gap);
    const size_t indent = newline == NULL ? 0 : (size_t)(config + l.open + gap - newline - 1);
    for (const char *p = value; *p != '\0'; p++) {
        tsr_text_append(out, p, 1);
        if (*p == '\n')
            tsr_text_printf(out, "%.*s", (int)indent, config + l.open + gap - indent);
    }
    tsr_text_append(out, config + rest, size - rest);
    return tsr_text_status(out, err);
}

tsr_status tsr_json_edit_remove(tsr_text *out, const char *config, size_t size, const char *key, tsr_err *err)
{
    layout l;
    TSR_TRY(find_members(&l, config, size, key, err));
    if (l.old.data == NULL) {
        tsr_text_append(out, config, size);
    } else if (l.after != 0) { /* the next member takes its place */
        tsr_text_append(out, config, l.from);
        tsr_text_append(out, config + l.after, size - l.after);
    } else { /* also remove the comma before the last member */
        const size_t end = (size_t)(l.old.data - config) + l.old.size;
        tsr_text_append(out, config, l.before);
        tsr_text_append(out, config + end, size - end);
    }
    return tsr_text_status(out, err);
}
