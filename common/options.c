/* Parses options by a table, and finds the option that a typo is closest to. */
#include "common/options.h"

#include "common/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parses "5GB", "2GiB", "4096" to bytes. */
static bool parse_size(const char *text, uint64_t *bytes)
{
    static const char kPrefixes[] = "kmgt";
    const char *end = text;
    double number;
    if (*text < '0' || *text > '9' || !tsr_take_real(&end, &number))
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
    return *bytes > 0;
}

static bool parse_count(const char *text, uint64_t *value)
{
    char *end;
    if (strncmp(text, "0x", 2) != 0)
        return tsr_parse_decimal(text, value);
    errno = 0;
    *value = strtoull(text, &end, 16);
    return isxdigit((unsigned char)text[2]) && *end == '\0' && errno == 0;
}

/* Returns the index of `word` in "a|b|c", or -1. */
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

/* ---- suggestions ---- */

enum { MAX_WORD = 56 /* suggestions have 80 bytes */ };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Returns the number of characters that must be changed, inserted, removed or swapped with their neighbour to turn `a`
 * into `b`. */
static size_t distance(const char *a, size_t n, const char *b, size_t m)
{
    size_t d[MAX_WORD + 1][MAX_WORD + 1];
    for (size_t i = 0; i <= n; i++) {
        for (size_t k = 0; k <= m; k++) {
            if (i == 0 || k == 0) {
                d[i][k] = i + k;
                continue;
            }
            const bool same = a[i - 1] == b[k - 1];
            d[i][k] = least(d[i - 1][k - 1] + !same, least(d[i - 1][k], d[i][k - 1]) + 1);
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                d[i][k] = least(d[i][k], d[i - 2][k - 2] + 1);
        }
    }
    return d[n][m];
}

const char *tsr_did_you_mean(const char *word, const char *words, char text[80])
{
    const size_t n = strlen(word);
    size_t best = 1 + (n < 5 ? 1 : n / 3);
    text[0] = '\0';
    for (const char *p = words; n <= MAX_WORD; p++) {
        const char *const end = strchrnul(p, '|');
        const size_t m = (size_t)(end - p), far = m <= MAX_WORD ? distance(word, n, p, m) : best;
        /* Words without a common character are not similar, however short they are. */
        if (far < best && far < n) {
            best = far;
            snprintf(text, 80, " (did you mean '%.*s'?)", (int)m, p);
        }
        if (*end == '\0')
            break;
        p = end;
    }
    return text;
}

/* Returns the option with a similar name. */
static const char *option_meant(const tsr_option *options, const char *word, char text[80])
{
    char words[2048] = "";
    size_t n = 0;
    for (const tsr_option *o = options; o->name != NULL && n < sizeof words; o++)
        n += (size_t)snprintf(words + n, sizeof words - n, "%s%s", n == 0 ? "" : "|", o->name);
    return tsr_did_you_mean(word, words, text);
}

/* ---- parsing ---- */

static tsr_status refuse(const tsr_option *o, const char *text, tsr_err *err)
{
    char meant[80] = "";
    if (o->kind == TSR_OPT_CHOICE)
        return tsr_fail(err, TSR_E_USAGE, "%s: '%s' is not one of %s%s", o->name, text, o->argument,
                        tsr_did_you_mean(text, o->argument, meant));
    return tsr_fail(err, TSR_E_USAGE, "%s: '%s' is not %s", o->name, text,
                    o->kind == TSR_OPT_COUNT      ? "a number"
                    : o->kind == TSR_OPT_POSITIVE ? "a number of at least 1"
                                                  : "a size such as 512MiB or 5GB");
}

static tsr_status assign(const tsr_option *o, const char *text, tsr_err *err)
{
    bool ok = true;
    if (text != NULL && !tsr_is_printable(text))
        return tsr_fail(err, TSR_E_USAGE, "%s: '%s' contains a control character", o->name, text);
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
    case TSR_OPT_POSITIVE:
        ok = parse_count(text, o->value) && *(const uint64_t *)o->value > 0;
        break;
    case TSR_OPT_SIZE:
        ok = parse_size(text, o->value);
        break;
    }
    return ok ? TSR_OK : refuse(o, text, err);
}

static const tsr_option *find(const tsr_option *options, const char *name, size_t length)
{
    for (const tsr_option *o = options; o->name != NULL; o++) {
        if (strlen(o->name) == length && memcmp(o->name, name, length) == 0)
            return o;
    }
    return NULL;
}

void tsr_options_append(tsr_option *options, const tsr_option *more)
{
    while (options->name != NULL)
        options++;
    do
        *options++ = *more;
    while (more++->name != NULL);
}

void tsr_options_append_topic(tsr_option *options, const char *topic, const tsr_option *more)
{
    while (options->name != NULL)
        options++;
    tsr_options_append(options, more);
    options->topic = topic;
}

/* Parses the option at argv[*i]. Advances *i to its value if that is a separate word. */
static tsr_status take_option(const tsr_option *options, int argc, char **argv, int *i, uint64_t *given, tsr_err *err)
{
    const char *const word = argv[*i], *const equals = strchr(word, '=');
    const size_t length = equals == NULL ? strlen(word) : (size_t)(equals - word);
    const tsr_option *const o = find(options, word, length);
    if (o == NULL) {
        char name[MAX_WORD + 2], meant[80];
        snprintf(name, sizeof name, "%.*s", (int)length, word);
        return tsr_fail(err, TSR_E_USAGE, "unknown option '%.*s'%s", (int)length, word,
                        option_meant(options, name, meant));
    }
    const char *text = equals == NULL ? NULL : equals + 1;
    if (o->kind == TSR_OPT_FLAG && text != NULL)
        return tsr_fail(err, TSR_E_USAGE, "%s takes no value", o->name);
    if (o->kind != TSR_OPT_FLAG && text == NULL) {
        if (*i + 1 == argc)
            return tsr_fail(err, TSR_E_USAGE, "%s needs a value: %s", o->name, o->argument);
        text = argv[++*i];
    }
    *given |= (uint64_t)1 << (o - options);
    return assign(o, text, err);
}

/* Returns an option for a path that a word without an option may have been meant for: one that the command accepts and
 * that is missing. NULL: there is none. */
static const char *unnamed_option(const tsr_option *options, int argc, char **argv)
{
    static const char *const kPaths[] = {"-o", "--against"};
    for (size_t k = 0; k < sizeof kPaths / sizeof *kPaths; k++) {
        bool given = false;
        for (int i = 0; i < argc; i++)
            given = given || strncmp(argv[i], kPaths[k], strlen(kPaths[k])) == 0;
        if (!given && find(options, kPaths[k], strlen(kPaths[k])) != NULL)
            return kPaths[k];
    }
    return NULL;
}

tsr_status tsr_options_parse(const tsr_option *options, int argc, char **argv, const char **positional,
                             size_t max_positional, size_t *n_positional, uint64_t *given, tsr_err *err)
{
    uint64_t seen = 0;
    *n_positional = 0;
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1] != '\0') {
            TSR_TRY(take_option(options, argc, argv, &i, &seen, err));
            continue;
        }
        if (*n_positional == max_positional) {
            const char *const meant = unnamed_option(options, argc, argv);
            return meant == NULL ? tsr_fail(err, TSR_E_USAGE, "unexpected argument '%s'", argv[i])
                                 : tsr_fail(err, TSR_E_USAGE, "unexpected argument '%s' (did you mean '%s %s'?)",
                                            argv[i], meant, argv[i]);
        }
        if (!tsr_is_printable(argv[i]))
            return tsr_fail(err, TSR_E_USAGE, "'%s' contains a control character", argv[i]);
        positional[(*n_positional)++] = argv[i];
    }
    if (given != NULL)
        *given = seen;
    return TSR_OK;
}

tsr_status tsr_parse_block(const char *name, const char *text, tsr_block *block, tsr_err *err)
{
    *block = (tsr_block){0, 0};
    if (text == NULL)
        return TSR_OK;
    if (!tsr_read_block(text, 4096, block))
        return tsr_fail(err, TSR_E_USAGE, "%s: '%s' is not ROWSxCOLUMNS, each from 1 to 4096", name, text);
    return TSR_OK;
}

tsr_status tsr_parse_number(const char *option, const char *text, tsr_range range, double *value, tsr_err *err)
{
    static const char *const kRanges[] = {[TSR_ANY_NUMBER] = "a number",
                                          [TSR_FROM_ZERO] = "a number of at least 0",
                                          [TSR_SHARE] = "a number from 0 to 1"};
    const char *end = text;
    if (text == NULL)
        return TSR_OK;
    if (!tsr_take_real(&end, value) || *end != '\0' || (range != TSR_ANY_NUMBER && *value < 0) ||
        (range == TSR_SHARE && *value > 1))
        return tsr_fail(err, TSR_E_USAGE, "%s: '%s' is not %s", option, text, kRanges[range]);
    return TSR_OK;
}

bool tsr_is_listed(const char *list, const char *word)
{
    const size_t n = strlen(word);
    if (n == 0 || strchr(word, ' ') != NULL)
        return false;
    for (const char *p = list; (p = strstr(p, word)) != NULL; p += n) {
        if ((p == list || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
            return true;
    }
    return false;
}

const char *tsr_option_spell(const tsr_option *option, tsr_arena *arena)
{
    if (option->kind == TSR_OPT_FLAG)
        return option->name;
    if (option->kind != TSR_OPT_CHOICE)
        return tsr_arena_printf(arena, "%s=%llu", option->name, U64(*(const uint64_t *)option->value));
    const char *word = option->argument;
    for (int i = *(const int *)option->value; i > 0; i--)
        word = strchr(word, '|') + 1;
    return tsr_arena_printf(arena, "%s=%.*s", option->name, (int)strcspn(word, "|"), word);
}
