/* Parsing by table. */
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "5GB", "2GiB", "4096" in bytes. */
static bool parse_size(const char *text, uint64_t *bytes)
{
    static const char kPrefixes[] = "kmgt";
    char *end;
    errno = 0;
    const double number = strtod(text, &end);
    if (end == text || errno != 0 || !(number >= 0))
        return false;
    double factor = 1;
    const char *const prefix = *end == '\0' ? NULL : strchr(kPrefixes, *end | 0x20);
    if (prefix != NULL) {
        const double base = end[1] == 'i' ? 1024 : 1000;
        for (long i = 0; i <= prefix - kPrefixes; i++)
            factor *= base;
        end += end[1] == 'i' ? 2 : 1;
    }
    if (*end == 'B' || *end == 'b')
        end++;
    if (*end != '\0' || number * factor >= 1.8e19)
        return false;
    *bytes = (uint64_t)(number * factor);
    return true;
}

static bool parse_count(const char *text, uint64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 0);
    return end != text && *end == '\0' && errno == 0 && *text != '-';
}

/* The index of `word` in "a|b|c", or -1. */
static int parse_choice(const char *choices, const char *word)
{
    const size_t n = strlen(word);
    int index = 0;
    for (const char *p = choices;; p++, index++) {
        const char *const end = strchrnul(p, '|');
        if ((size_t)(end - p) == n && memcmp(p, word, n) == 0)
            return index;
        if (*end == '\0')
            return -1;
        p = end;
    }
}

static tsr_status assign(const tsr_option *o, const char *text, tsr_err *err)
{
    bool ok = true;
    switch (o->kind) {
    case TSR_OPT_FLAG:
        *(bool *)o->value = true;
        break;
    case TSR_OPT_TEXT:
        *(const char **)o->value = text;
        break;
    case TSR_OPT_LIST: {
        tsr_list *const list = o->value;
        if (list->count == sizeof list->items / sizeof *list->items)
            return tsr_fail(err, TSR_E_USAGE, "%s: given more than %zu times", o->name, list->count);
        list->items[list->count++] = text;
        break;
    }
    case TSR_OPT_CHOICE: {
        const int index = parse_choice(o->argument, text);
        ok = index >= 0;
        if (ok)
            *(int *)o->value = index;
        break;
    }
    case TSR_OPT_COUNT:
        ok = parse_count(text, o->value);
        break;
    case TSR_OPT_SIZE:
        ok = parse_size(text, o->value);
        break;
    }
    return ok ? TSR_OK
              : tsr_fail(err, TSR_E_USAGE, "%s: '%s' is not %s%s", o->name, text,
                         o->kind == TSR_OPT_CHOICE  ? "one of "
                         : o->kind == TSR_OPT_COUNT ? "a number"
                                                    : "a size such as 512MiB or 5GB",
                         o->kind == TSR_OPT_CHOICE ? o->argument : "");
}

static const tsr_option *find(const tsr_option *options, size_t n, const char *name, size_t length)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(options[i].name) == length && memcmp(options[i].name, name, length) == 0)
            return &options[i];
    }
    return NULL;
}

tsr_status tsr_options_parse(const tsr_option *options, size_t n_options, int argc, char **argv,
                             const char **positional, size_t max_positional, size_t *n_positional, uint64_t *given,
                             tsr_err *err)
{
    *n_positional = 0;
    if (given != NULL)
        *given = 0;
    for (int i = 0; i < argc; i++) {
        const char *const word = argv[i];
        if (word[0] != '-' || word[1] == '\0') {
            if (*n_positional == max_positional)
                return tsr_fail(err, TSR_E_USAGE, "'%s': one argument too many", word);
            positional[(*n_positional)++] = word;
            continue;
        }
        const char *const equals = strchr(word, '=');
        const size_t length = equals == NULL ? strlen(word) : (size_t)(equals - word);
        const tsr_option *const o = find(options, n_options, word, length);
        if (o == NULL)
            return tsr_fail(err, TSR_E_USAGE, "unknown option '%.*s'", (int)length, word);
        const char *text = equals == NULL ? NULL : equals + 1;
        if (o->kind == TSR_OPT_FLAG && text != NULL)
            return tsr_fail(err, TSR_E_USAGE, "%s takes no value", o->name);
        if (o->kind != TSR_OPT_FLAG && text == NULL) {
            if (i + 1 == argc)
                return tsr_fail(err, TSR_E_USAGE, "%s needs a value: %s", o->name, o->argument);
            text = argv[++i];
        }
        TSR_TRY(assign(o, text, err));
        if (given != NULL)
            *given |= (uint64_t)1 << (o - options);
    }
    return TSR_OK;
}

void tsr_options_help(const tsr_option *options, size_t n_options)
{
    for (size_t i = 0; i < n_options; i++) {
        char head[128];
        snprintf(head, sizeof head, "%s%s%s", options[i].name, options[i].argument == NULL ? "" : " ",
                 options[i].argument == NULL ? "" : options[i].argument);
        if (strlen(head) < 26)
            printf("  %-26s%s\n", head, options[i].help);
        else
            printf("  %s\n  %-26s%s\n", head, "", options[i].help);
    }
}

tsr_status tsr_parse_block(const char *name, const char *text, uint32_t *rows, uint32_t *cols, tsr_err *err)
{
    unsigned r, c;
    char rest;
    *rows = *cols = 0;
    if (text == NULL)
        return TSR_OK;
    if (sscanf(text, "%ux%u%c", &r, &c, &rest) != 2 || r == 0 || c == 0 || r > 4096 || c > 4096)
        return tsr_fail(err, TSR_E_USAGE, "%s: '%s' is not ROWSxCOLUMNS, each from 1 to 4096", name, text);
    *rows = r;
    *cols = c;
    return TSR_OK;
}

tsr_status tsr_parse_number(const char *option, const char *text, double *value, tsr_err *err)
{
    char *end;
    if (text == NULL)
        return TSR_OK;
    *value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(*value))
        return tsr_fail(err, TSR_E_USAGE, "%s: '%s' is not a number", option, text);
    return TSR_OK;
}

bool tsr_is_listed(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)) != NULL; p += n) {
        if ((p == list || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
            return true;
    }
    return false;
}
