/* Finding where the last member of an object ends, and writing behind it. */
#include "formats/config.h"

#include "formats/json.h"

#include <string.h>

tsr_status tsr_config_insert(tsr_text *out, const char *config, size_t size, const char *key, const char *value,
                             tsr_err *err)
{
    tsr_json_reader r = tsr_json_open("config.json", config, size);
    size_t first = 0, last = 0; /* where the first member begins, and the last one ends */
    bool more;
    TSR_TRY(tsr_json_enter_object(&r, err));
    const size_t open = r.pos;
    for (;;) {
        tsr_json_text name;
        TSR_TRY(tsr_json_next_member(&r, &name, &more, err));
        if (!more)
            break;
        if (first == 0)
            first = (size_t)(name.data - config) - 1;
        TSR_TRY(tsr_json_skip(&r, NULL, err));
        last = r.pos;
    }
    const size_t at = last == 0 ? open : last;
    tsr_text_append(out, config, at);
    if (last != 0)
        tsr_text_append(out, ",", 1);
    /* The white space in front of the first member is the file's own style. */
    const size_t gap = first == 0 ? 0 : first - open;
    tsr_text_append(out, config + open, gap);
    tsr_json_quoted(out, key);
    tsr_text_append(out, ": ", 2);
    const char *const newline = memrchr(config + open, '\n', gap);
    const size_t indent = newline == NULL ? 0 : (size_t)(config + open + gap - newline - 1);
    for (const char *p = value; *p != '\0'; p++) {
        tsr_text_append(out, p, 1);
        if (*p == '\n')
            tsr_text_printf(out, "%.*s", (int)indent, config + open + gap - indent);
    }
    tsr_text_append(out, config + at, size - at);
    return tsr_text_status(out, err);
}
