/* Reads the lists of unquantized modules, and matches names with them. */
#include "formats/names/ignore_list.h"

#include "common/glob.h"
#include "common/text.h"

#include <string.h>

static const char kModel[] = "model.", kExpression[] = "re:";

enum { MAX_STEPS = 1 << 16 }; /* limit for all expressions of a list */

static const char *without_model(const char *name)
{
    return strncmp(name, kModel, sizeof kModel - 1) == 0 ? name + sizeof kModel - 1 : name;
}

static bool is_expression(const char *entry)
{
    return strncmp(entry, kExpression, sizeof kExpression - 1) == 0;
}

/* Adds an entry. Returns false when memory is exhausted. *steps is the remaining limit for expressions. */
static bool add_entry(tsr_ignore_list *list, const char *entry, size_t *steps)
{
    tsr_pattern *const pattern = &list->patterns[list->count];
    tsr_err err = {.msg = "the expressions of the list together exceed Tessera's limit"};
    list->entries[list->count++] = entry;
    if (!is_expression(entry))
        return true;
    const tsr_status status = *steps == 0
                                  ? TSR_E_UNSUPPORTED
                                  : tsr_pattern_compile(pattern, entry + sizeof kExpression - 1, &list->arena, &err);
    if (status == TSR_OK) {
        *steps -= pattern->count < *steps ? pattern->count : *steps;
    } else if (list->unknown == NULL) {
        list->unknown = entry;
        list->why = tsr_arena_dup(&list->arena, err.msg, strlen(err.msg));
    }
    return status != TSR_E_NOMEM && (list->unknown == NULL || list->why != NULL);
}

/* Reads entry `at` from the reader. Fails if the list is not valid JSON or memory is exhausted. */
static tsr_status read_entry(tsr_ignore_list *list, tsr_json_reader *r, size_t at, size_t *steps)
{
    tsr_json_kind kind;
    tsr_json_text text;
    const char *entry = NULL;
    const char *what = "no text";
    TSR_TRY(tsr_json_peek(r, &kind, NULL));
    if (kind == TSR_JSON_STRING) {
        TSR_TRY(tsr_json_read_string(r, &text, NULL));
        const tsr_status status = tsr_json_decode(r, text, &list->arena, &entry, NULL);
        if (status == TSR_OK)
            return add_entry(list, entry, steps) ? TSR_OK : TSR_E_NOMEM;
        if (status == TSR_E_NOMEM)
            return status;
        what = "not the name of a module";
    } else {
        TSR_TRY(tsr_json_skip(r, NULL, NULL));
    }
    if (list->odd == NULL)
        list->odd = tsr_arena_printf(&list->arena, "entry %zu is %s", at + 1, what);
    return list->odd == NULL ? TSR_E_NOMEM : TSR_OK;
}

bool tsr_ignore_list_read(tsr_ignore_list *list, const char *key, tsr_json_text array)
{
    bool more;
    *list = (tsr_ignore_list){.key = key};
    size_t quotes = 0, steps = MAX_STEPS;
    for (size_t i = 0; i < array.size; i++)
        quotes += array.data[i] == '"';
    list->entries = tsr_arena_alloc(&list->arena, (quotes / 2 + 1) * sizeof *list->entries);
    list->patterns = tsr_arena_alloc(&list->arena, (quotes / 2 + 1) * sizeof *list->patterns);
    if (list->entries == NULL || list->patterns == NULL)
        return false;
    tsr_json_reader r = tsr_json_open("config.json", array.data, array.size);
    tsr_status status = tsr_json_enter_array(&r, NULL);
    for (size_t at = 0; status == TSR_OK; at++) {
        status = tsr_json_next_element(&r, &more, NULL);
        if (status != TSR_OK || !more)
            break;
        status = read_entry(list, &r, at, &steps);
    }
    if (status != TSR_OK && status != TSR_E_NOMEM)
        list->odd = "it is no list";
    return status != TSR_E_NOMEM;
}

/* Returns true if `part` occurs in `name` as whole components. */
static bool has_components(const char *name, const char *part)
{
    const size_t n = strlen(part);
    for (const char *at = strstr(name, part); n > 0 && at != NULL; at = strstr(at + 1, part)) {
        if ((at == name || at[-1] == '.') && (at[n] == '\0' || at[n] == '.'))
            return true;
    }
    return false;
}

static bool covers(const tsr_ignore_list *list, size_t i, tsr_matching matching, const char *module)
{
    const char *const entry = list->entries[i];
    const tsr_pattern *const pattern = &list->patterns[i];
    switch (matching) {
    case TSR_MATCH_EXACT:
        return strcmp(entry, module) == 0;
    case TSR_MATCH_PATH:
        return has_components(module, without_model(entry));
    case TSR_MATCH_ENDS:
        return strncmp(module, entry, strlen(entry)) == 0 || tsr_ends_with(module, entry);
    case TSR_MATCH_REGEX:
        return is_expression(entry) ? tsr_pattern_match(pattern, module, NULL) : strcmp(entry, module) == 0;
    case TSR_MATCH_SUFFIX_REGEX:
        return covers(list, i, TSR_MATCH_REGEX, module) || (!is_expression(entry) && tsr_ends_in_parts(module, entry));
    case TSR_MATCH_GLOB:
        return tsr_glob_match(entry, module);
    case TSR_MATCH_WITHIN:
        return strstr(entry, module) != NULL;
    }
    return false;
}

const char *tsr_ignore_list_find(const tsr_ignore_list *list, tsr_matching matching, const char *module)
{
    for (size_t i = 0; i < list->count; i++) {
        if (covers(list, i, matching, module))
            return list->entries[i];
    }
    return NULL;
}

const char *tsr_ignore_list_unsure(const tsr_ignore_list *list, const char *module)
{
    for (size_t i = 0; i < list->count; i++) {
        if (is_expression(list->entries[i]) && !tsr_pattern_knows(&list->patterns[i], module))
            return list->entries[i];
    }
    return NULL;
}

void tsr_ignore_list_free(tsr_ignore_list *list)
{
    tsr_arena_free(&list->arena);
    *list = (tsr_ignore_list){0};
}
