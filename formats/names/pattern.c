/* Compiles an expression into steps. Repeats are expanded, so that matching need not count. */
#include "formats/names/pattern_steps.h"

#include <stdlib.h>
#include <string.h>

typedef struct tsr_pattern_step step;
typedef struct tsr_pattern_range range;

enum { MAX_RANGES = 1024, UNBOUNDED = -1 };

static bool is_letter_or_digit(uint32_t c)
{
    return tsr_is_word(c) && c != '_';
}

typedef struct parser {
    const char *text, *at;
    step *steps;
    range *ranges;
    size_t count, n_ranges;
    unsigned depth;
    bool ascii;
    tsr_err *err;
} parser;

static tsr_status refuse(const parser *p, tsr_status status, const char *at, const char *what)
{
    const size_t shown = strlen(at) > 12 ? 12 : strlen(at);
    return tsr_fail(p->err, status, "%s, at character %zu: '%.*s'", what, (size_t)(at - p->text) + 1, (int)shown, at);
}

static tsr_status unknown(const parser *p, const char *at, const char *what)
{
    return refuse(p, TSR_E_UNSUPPORTED, at, what);
}

static tsr_status malformed(const parser *p, const char *at, const char *what)
{
    return refuse(p, TSR_E_FORMAT, at, what);
}

static tsr_status make_room(const parser *p, size_t more)
{
    if (more <= (size_t)TSR_PATTERN_STEPS - p->count)
        return TSR_OK;
    return unknown(p, p->text, "its repeats exceed Tessera's limit");
}

static tsr_status emit(parser *p, tsr_step_kind op, int32_t x, int32_t y)
{
    TSR_TRY(make_room(p, 1));
    p->steps[p->count++] = (step){op, x, y};
    return TSR_OK;
}

/* Inserts at `start` a choice between the next step and the one `other` steps on. The following steps move together.
 * They refer to each other by distance, and none refers to a step before `start`, so the distances stay valid. */
static tsr_status insert_choice(parser *p, size_t start, int32_t other)
{
    TSR_TRY(make_room(p, 1));
    memmove(p->steps + start + 1, p->steps + start, (p->count - start) * sizeof *p->steps);
    p->steps[start] = (step){TSR_STEP_EITHER, 1, other};
    p->count++;
    return TSR_OK;
}

static tsr_status add_range(parser *p, uint32_t low, uint32_t high)
{
    if (p->n_ranges == MAX_RANGES)
        return unknown(p, p->text, "its classes exceed Tessera's limit");
    p->ranges[p->n_ranges++] = (range){low, high};
    return TSR_OK;
}

static bool is_class(char letter)
{
    return letter != '\0' && strchr("dwsDWS", letter) != NULL;
}

/* Adds the characters of the class \d, \w, \s or one of their opposites. */
static tsr_status add_class(parser *p, char letter)
{
    static const range kDigits[] = {{'0', '9'}}, kSpace[] = {{'\t', '\r'}, {0x1C, ' '}},
                       kWord[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    const char small = (char)(letter | 0x20);
    const range *const set = small == 'd' ? kDigits : small == 's' ? kSpace : kWord;
    const size_t n = small == 'd' ? 1 : small == 's' ? 2 : 4;
    uint32_t next = 0;
    p->ascii = true;
    for (size_t i = 0; i < n; i++) {
        if (letter == small)
            TSR_TRY(add_range(p, set[i].low, set[i].high));
        else if (set[i].low > next)
            TSR_TRY(add_range(p, next, set[i].low - 1));
        next = set[i].high + 1;
    }
    return letter == small ? TSR_OK : add_range(p, next, TSR_LAST_CHARACTER);
}

/* Reads an escaped character. p->at is after the backslash. */
static tsr_status read_escape(parser *p, uint32_t *c)
{
    static const char kNames[] = "abfnrtv", kValues[] = "\a\b\f\n\r\t\v";
    const char *const at = p->at - 1;
    if (*p->at == '\0')
        return malformed(p, at, "nothing follows the backslash");
    *c = tsr_next_character(&p->at);
    if (!is_letter_or_digit(*c))
        return TSR_OK;
    const char *const named = strchr(kNames, (int)*c);
    if (named == NULL)
        return unknown(p, at, "an unsupported escape");
    *c = (uint32_t)(unsigned char)kValues[named - kNames];
    return TSR_OK;
}

/* Reads one end of a range in a class, or a class such as \d within it (then *set is true). */
static tsr_status read_class_item(parser *p, uint32_t *c, bool *set)
{
    *set = false;
    if (*p->at != '\\') {
        *c = tsr_next_character(&p->at);
        return TSR_OK;
    }
    p->at++;
    *set = is_class(*p->at);
    return *set ? add_class(p, *p->at++) : read_escape(p, c);
}

static tsr_status read_class(parser *p)
{
    const char *const at = p->at++;
    const bool none = *p->at == '^';
    const size_t first = p->n_ranges;
    p->at += none;
    for (const char *const begin = p->at; *p->at != ']' || p->at == begin;) {
        uint32_t low = 0, high;
        bool set, set_too;
        if (*p->at == '\0')
            return malformed(p, at, "a class without its ']'");
        TSR_TRY(read_class_item(p, &low, &set));
        high = low;
        if (p->at[0] == '-' && p->at[1] != ']' && p->at[1] != '\0') {
            const char *const dash = p->at++;
            TSR_TRY(read_class_item(p, &high, &set_too));
            if (set || set_too || high < low)
                return malformed(p, dash, "a range whose first character is above its last");
        }
        if (!set)
            TSR_TRY(add_range(p, low, high));
    }
    p->at++;
    if (p->n_ranges - first > TSR_PATTERN_RANGES)
        return unknown(p, at, "a class exceeds Tessera's limit");
    return emit(p, none ? TSR_STEP_NONE_OF : TSR_STEP_ONE_OF, (int32_t)first, (int32_t)(p->n_ranges - first));
}

static tsr_status read_alternatives(parser *p);

/* Reads a group; p->at is at its '('. */
static tsr_status read_group(parser *p)
{
    const char *const at = p->at++;
    if (p->at[0] == '?' && p->at[1] == ':') {
        p->at += 2;
    } else if (p->at[0] == '?' && p->at[1] == 'P' && p->at[2] == '<') {
        const char *const name = p->at + 3;
        for (p->at = name; tsr_is_word((unsigned char)*p->at); p->at++)
            ;
        if (p->at == name || (*name >= '0' && *name <= '9') || *p->at++ != '>')
            return malformed(p, at, "a group without a name");
    } else if (p->at[0] == '?') {
        return unknown(p, at, "an unsupported kind of group");
    }
    if (++p->depth > TSR_PATTERN_DEPTH)
        return unknown(p, at, "groups are nested too deeply");
    TSR_TRY(read_alternatives(p));
    if (*p->at != ')')
        return malformed(p, at, "a group without its ')'");
    p->at++;
    p->depth--;
    return TSR_OK;
}

/* Reads an escape outside of classes. *anchor: it matches a position in the name, not a character. */
static tsr_status read_backslash(parser *p, bool *anchor)
{
    static const char kAnchors[] = "AZbB";
    static const tsr_step_kind kOps[] = {TSR_STEP_START, TSR_STEP_VERY_END, TSR_STEP_BOUNDARY, TSR_STEP_NO_BOUNDARY};
    const size_t first = p->n_ranges;
    uint32_t c;
    p->at++;
    const char *const named = *p->at == '\0' ? NULL : strchr(kAnchors, *p->at);
    *anchor = named != NULL;
    if (named != NULL) {
        p->ascii = p->ascii || *named == 'b' || *named == 'B';
        p->at++;
        return emit(p, kOps[named - kAnchors], 0, 0);
    }
    if (is_class(*p->at)) {
        TSR_TRY(add_class(p, *p->at++));
        return emit(p, TSR_STEP_ONE_OF, (int32_t)first, (int32_t)(p->n_ranges - first));
    }
    TSR_TRY(read_escape(p, &c));
    return emit(p, TSR_STEP_CHARACTER, (int32_t)c, 0);
}

static tsr_status read_atom(parser *p, bool *anchor)
{
    *anchor = *p->at == '^' || *p->at == '$';
    switch (*p->at) {
    case '^':
    case '$':
        return emit(p, *p->at++ == '^' ? TSR_STEP_START : TSR_STEP_END, 0, 0);
    case '(':
        return read_group(p);
    case '[':
        return read_class(p);
    case '\\':
        return read_backslash(p, anchor);
    case '.':
        p->at++;
        return emit(p, TSR_STEP_ANY, 0, 0);
    default:
        return emit(p, TSR_STEP_CHARACTER, (int32_t)tsr_next_character(&p->at), 0);
    }
}

/* Reads a number between braces; UNBOUNDED if there is none. */
static int read_count(const char **at)
{
    int n = UNBOUNDED;
    for (; **at >= '0' && **at <= '9'; ++*at) {
        n = (n == UNBOUNDED ? 0 : n * 10) + (**at - '0');
        n = n > TSR_PATTERN_REPEAT ? TSR_PATTERN_REPEAT + 1 : n;
    }
    return n;
}

/* Reads how often the item before p->at is repeated. Returns false if no repeat follows it. Braces without numbers are
 * ordinary characters. */
static bool read_repeat(parser *p, int *least, int *most)
{
    const char *at = p->at;
    if (*at == '*' || *at == '+' || *at == '?') {
        *least = *at == '+';
        *most = *at == '?' ? 1 : UNBOUNDED;
        p->at++;
        return true;
    }
    if (*at != '{' || at[1] == '}')
        return false;
    at++;
    *least = *most = read_count(&at);
    if (*at == ',') {
        at++;
        *most = read_count(&at);
        *least = *least == UNBOUNDED ? 0 : *least;
    }
    if (*at != '}' || (*least == UNBOUNDED && *most == UNBOUNDED))
        return false;
    p->at = at + 1;
    return true;
}

/* Copies the `length` steps from `start` on, so that they occur `times` times in all. */
static tsr_status copy(parser *p, size_t start, size_t length, int times)
{
    TSR_TRY(make_room(p, length * (size_t)(times > 0 ? times - 1 : 0)));
    for (int i = 1; i < times; i++) {
        memcpy(p->steps + p->count, p->steps + start, length * sizeof *p->steps);
        p->count += length;
    }
    return TSR_OK;
}

/* Expands a repeat of the steps from `start` on. */
static tsr_status repeat(parser *p, size_t start, int least, int most)
{
    const size_t length = p->count - start;
    const int32_t n = (int32_t)length;
    if (most == UNBOUNDED && least == 0) {
        TSR_TRY(insert_choice(p, start, n + 2));
        return emit(p, TSR_STEP_GO, -(n + 1), 0);
    }
    if (most == UNBOUNDED) {
        TSR_TRY(copy(p, start, length, least));
        return emit(p, TSR_STEP_EITHER, -n, 1);
    }
    if (least > 0)
        TSR_TRY(copy(p, start, length, least));
    const int optional = most - least;
    TSR_TRY(make_room(p, (length + 1) * (size_t)optional));
    /* with least = 0 the first optional copy is the original; later copies are made from it */
    for (int i = 0; i < optional; i++) {
        const int32_t to_end = (int32_t)(optional - i) * (n + 1);
        if (i == 0 && least == 0) {
            TSR_TRY(insert_choice(p, start, to_end));
            continue;
        }
        TSR_TRY(emit(p, TSR_STEP_EITHER, 1, to_end));
        memcpy(p->steps + p->count, p->steps + start + (least == 0), length * sizeof *p->steps);
        p->count += length;
    }
    if (most == 0)
        p->count = start;
    return TSR_OK;
}

static tsr_status read_sequence(parser *p)
{
    while (*p->at != '\0' && *p->at != '|' && *p->at != ')') {
        const size_t start = p->count;
        const char *at = p->at;
        int least, most;
        bool anchor;
        if (strchr("*+?", *at) != NULL || read_repeat(p, &least, &most))
            return malformed(p, at, "nothing to repeat");
        TSR_TRY(read_atom(p, &anchor));
        at = p->at;
        if (!read_repeat(p, &least, &most))
            continue;
        if (anchor)
            return malformed(p, at, "nothing to repeat");
        if (least > TSR_PATTERN_REPEAT || most > TSR_PATTERN_REPEAT)
            return unknown(p, at, "a repeat exceeds Tessera's limit");
        if (most != UNBOUNDED && most < least)
            return malformed(p, at, "a repeat whose minimum is above its maximum");
        TSR_TRY(repeat(p, start, least, most));
        p->at += *p->at == '?'; /* a lazy repeat matches the same names */
        if (*p->at == '+')
            return unknown(p, at, "a possessive repeat");
        if (*p->at == '*' || *p->at == '?')
            return malformed(p, at, "a repeat of a repeat");
        const char *const again = p->at;
        if (read_repeat(p, &least, &most))
            return malformed(p, again, "a repeat of a repeat");
    }
    return TSR_OK;
}

static tsr_status read_alternatives(parser *p)
{
    size_t start = p->count, last = SIZE_MAX; /* the TSR_STEP_GO that ended the previous alternative */
    for (;;) {
        TSR_TRY(read_sequence(p));
        if (*p->at != '|')
            break;
        p->at++;
        TSR_TRY(insert_choice(p, start, (int32_t)(p->count - start) + 2));
        /* Until the end is known, each TSR_STEP_GO points back at the previous one. */
        TSR_TRY(emit(p, TSR_STEP_GO, last == SIZE_MAX ? 0 : (int32_t)(p->count - last), 0));
        last = p->count - 1;
        start = p->count;
    }
    while (last != SIZE_MAX) {
        const int32_t back = p->steps[last].x;
        p->steps[last].x = (int32_t)(p->count - last);
        last = back == 0 ? SIZE_MAX : last - (size_t)back;
    }
    return TSR_OK;
}

tsr_status tsr_pattern_compile(tsr_pattern *pattern, const char *text, tsr_arena *arena, tsr_err *err)
{
    parser p = {.text = text, .at = text, .err = err};
    *pattern = (tsr_pattern){0};
    p.steps = malloc((TSR_PATTERN_STEPS + 1) * sizeof *p.steps);
    p.ranges = malloc(MAX_RANGES * sizeof *p.ranges);
    tsr_status status = p.steps == NULL || p.ranges == NULL ? tsr_out_of_memory(err, NULL) : read_alternatives(&p);
    if (status == TSR_OK && *p.at == ')')
        status = malformed(&p, p.at, "a ')' without its '('");
    if (status == TSR_OK) {
        p.steps[p.count++] = (step){TSR_STEP_FOUND, 0, 0};
        step *const steps = tsr_arena_alloc(arena, p.count * sizeof *steps);
        range *const ranges = tsr_arena_alloc(arena, p.n_ranges * sizeof *ranges + 1);
        if (steps == NULL || ranges == NULL) {
            status = tsr_out_of_memory(err, NULL);
        } else {
            memcpy(steps, p.steps, p.count * sizeof *steps);
            memcpy(ranges, p.ranges, p.n_ranges * sizeof *ranges);
            *pattern = (tsr_pattern){steps, ranges, p.count, p.ascii};
        }
    }
    free(p.steps);
    free(p.ranges);
    return status;
}
