/* Reading and matching. */
#include "formats/ignore_list.h"

#include "formats/glob.h"

#include <regex.h>
#include <stdio.h>
#include <string.h>

static const char kModel[] = "model.";

/* One per entry; `used` when the entry is an expression that could be compiled. */
typedef struct expression {
    regex_t regex;
    bool used;
} expression;

static const char *without_model(const char *name)
{
    return strncmp(name, kModel, sizeof kModel - 1) == 0 ? name + sizeof kModel - 1 : name;
}

/* Python's expression in POSIX's words: anchored at the start, with the classes and groups that lists really use. */
static bool compile(tsr_ignore_list *list, expression *e, const char *python)
{
    char posix[1024];
    size_t n = (size_t)snprintf(posix, sizeof posix, "^(");
    for (const char *p = python; *p != '\0'; p++) {
        if (n + 8 > sizeof posix)
            return false;
        if (p[0] == '\\' && (p[1] == 'd' || p[1] == 'w')) {
            n += (size_t)snprintf(posix + n, sizeof posix - n, "%s", p[1] == 'd' ? "[0-9]" : "[A-Za-z0-9_]");
            p++;
        } else if (p[0] == '(' && p[1] == '?' && p[2] == ':') {
            posix[n++] = '(';
            p += 2;
        } else if (p[0] == '.' && p[1] == '*' && p[2] == '?') { /* lazy or not, it matches the same names */
            posix[n++] = '.';
            posix[n++] = '*';
            p += 2;
        } else {
            posix[n++] = *p;
        }
    }
    snprintf(posix + n, sizeof posix - n, ")");
    e->used = regcomp(&e->regex, posix, REG_EXTENDED | REG_NOSUB) == 0;
    if (!e->used)
        list->bad = python;
    return true;
}

static bool add_entry(tsr_ignore_list *list, const char *entry)
{
    expression *const e = &((expression *)list->expressions)[list->count];
    list->entries[list->count++] = entry;
    return strncmp(entry, "re:", 3) != 0 || compile(list, e, entry + 3);
}

bool tsr_ignore_list_read(tsr_ignore_list *list, tsr_json_text config, const char *const *keys, size_t n)
{
    tsr_json_text array, text;
    bool more;
    *list = (tsr_ignore_list){0};
    for (size_t i = 0; i < n && list->key == NULL; i++) {
        if (tsr_json_find(config.data, config.size, keys[i], &array) && array.data[0] == '[')
            list->key = keys[i];
    }
    if (list->key == NULL)
        return true;
    size_t quotes = 0;
    for (size_t i = 0; i < array.size; i++)
        quotes += array.data[i] == '"';
    list->entries = tsr_arena_alloc(&list->arena, (quotes / 2 + 1) * sizeof *list->entries);
    list->expressions = tsr_arena_alloc(&list->arena, (quotes / 2 + 1) * sizeof(expression));
    if (list->entries == NULL || list->expressions == NULL)
        return false;
    tsr_json_reader r = tsr_json_open("config.json", array.data, array.size);
    if (tsr_json_enter_array(&r, NULL) != TSR_OK)
        return true;
    while (tsr_json_next_element(&r, &more, NULL) == TSR_OK && more) {
        tsr_json_kind kind;
        const char *entry;
        if (tsr_json_peek(&r, &kind, NULL) != TSR_OK)
            return true;
        if (kind != TSR_JSON_STRING) {
            if (tsr_json_skip(&r, NULL, NULL) != TSR_OK)
                return true;
            continue;
        }
        if (tsr_json_read_string(&r, &text, NULL) != TSR_OK ||
            tsr_json_decode(&r, text, &list->arena, &entry, NULL) != TSR_OK || !add_entry(list, entry))
            return true;
    }
    return true;
}

static bool ends_with(const char *text, const char *ending)
{
    const size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

static bool covers(const tsr_ignore_list *list, size_t i, tsr_matching matching, const char *module)
{
    const char *const entry = list->entries[i];
    const expression *const e = &((const expression *)list->expressions)[i];
    switch (matching) {
    case TSR_MATCH_EXACT:
        return strcmp(entry, module) == 0;
    case TSR_MATCH_SUBSTRING:
        return strstr(module, without_model(entry)) != NULL;
    case TSR_MATCH_ENDS:
        return strncmp(module, entry, strlen(entry)) == 0 || ends_with(module, entry);
    case TSR_MATCH_REGEX:
        return e->used ? regexec(&e->regex, module, 0, NULL, 0) == 0 : strcmp(entry, module) == 0;
    case TSR_MATCH_GLOB:
        return tsr_glob_match(entry, module);
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

void tsr_ignore_list_free(tsr_ignore_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        expression *const e = &((expression *)list->expressions)[i];
        if (e->used)
            regfree(&e->regex);
    }
    tsr_arena_free(&list->arena);
    *list = (tsr_ignore_list){0};
}
