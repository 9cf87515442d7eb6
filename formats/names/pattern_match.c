/* Follows all alternatives of an expression at once. No step is visited twice at the same character of the name, so the
 * matching time is bounded for every expression. */
#include "formats/names/pattern_steps.h"

uint32_t tsr_next_character(const char **text)
{
    const unsigned char *const p = (const unsigned char *)*text;
    const int more = p[0] < 0x80 ? 0 : p[0] >> 5 == 6 ? 1 : p[0] >> 4 == 14 ? 2 : p[0] >> 3 == 30 ? 3 : -1;
    uint32_t c = more <= 0 ? p[0] : p[0] & (0x3Fu >> more);
    for (int i = 1; i <= more; i++) {
        if (p[i] >> 6 != 2) {
            *text += 1;
            return TSR_LAST_CHARACTER + 1 + p[0];
        }
        c = c << 6 | (p[i] & 0x3Fu);
    }
    *text += more < 0 ? 1 : more + 1;
    return more < 0 ? TSR_LAST_CHARACTER + 1 + p[0] : c;
}

bool tsr_is_word(uint32_t c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* The set of steps at which the match may be. */
typedef struct places {
    uint16_t at[TSR_PATTERN_STEPS + 1];
    size_t count;
} places;

typedef struct matcher {
    const tsr_pattern *pattern;
    const char *name, *here;
    uint32_t before;                       /* the character before `here`; 0 at the start */
    uint32_t seen[TSR_PATTERN_STEPS + 1];  /* number of characters read when a step was last reached */
    uint16_t to_do[TSR_PATTERN_STEPS + 1]; /* steps that were reached and not followed yet */
    uint32_t turn;
    uint64_t work;
} matcher;

static bool holds(const matcher *m, tsr_step_kind op)
{
    const char *const here = m->here;
    const bool boundary = tsr_is_word(m->before) != tsr_is_word((unsigned char)*here);
    switch (op) {
    case TSR_STEP_START:
        return here == m->name;
    case TSR_STEP_END:
        return *here == '\0' || (here[0] == '\n' && here[1] == '\0');
    case TSR_STEP_VERY_END:
        return *here == '\0';
    case TSR_STEP_BOUNDARY:
        return boundary;
    default:
        return !boundary;
    }
}

static void come_to(matcher *m, size_t at, size_t *n)
{
    m->work++;
    if (m->seen[at] == m->turn)
        return;
    m->seen[at] = m->turn;
    m->to_do[(*n)++] = (uint16_t)at;
}

/* Adds the step `at` and all steps reachable from it without reading a character. Returns true if the end of the
 * expression is among them. */
static bool add_place(matcher *m, places *to, size_t at)
{
    size_t n = 0;
    come_to(m, at, &n);
    while (n > 0) {
        const size_t i = m->to_do[--n];
        const struct tsr_pattern_step *const s = &m->pattern->steps[i];
        switch (s->op) {
        case TSR_STEP_CHARACTER:
        case TSR_STEP_ANY:
        case TSR_STEP_ONE_OF:
        case TSR_STEP_NONE_OF:
            to->at[to->count++] = (uint16_t)i;
            break;
        case TSR_STEP_EITHER:
            come_to(m, (size_t)((int64_t)i + s->x), &n);
            come_to(m, (size_t)((int64_t)i + s->y), &n);
            break;
        case TSR_STEP_GO:
            come_to(m, (size_t)((int64_t)i + s->x), &n);
            break;
        case TSR_STEP_FOUND:
            return true;
        default:
            if (holds(m, s->op))
                come_to(m, i + 1, &n);
        }
    }
    return false;
}

static bool takes(const matcher *m, const struct tsr_pattern_step *s, uint32_t c)
{
    if (s->op == TSR_STEP_ANY)
        return c != '\n';
    if (s->op == TSR_STEP_CHARACTER)
        return c == (uint32_t)s->x;
    const struct tsr_pattern_range *const set = m->pattern->ranges + s->x;
    for (int32_t i = 0; i < s->y; i++) {
        if (c >= set[i].low && c <= set[i].high)
            return s->op == TSR_STEP_ONE_OF;
    }
    return s->op == TSR_STEP_NONE_OF;
}

bool tsr_pattern_match(const tsr_pattern *pattern, const char *name, uint64_t *work)
{
    matcher m = {.pattern = pattern, .name = name, .here = name, .turn = 1};
    places turns[2], *now = &turns[0], *next = &turns[1];
    now->count = 0;
    bool found = pattern->count > 0 && add_place(&m, now, 0);
    while (!found && now->count > 0 && *m.here != '\0') {
        const uint32_t c = tsr_next_character(&m.here);
        m.before = c;
        m.turn++;
        next->count = 0;
        for (size_t i = 0; i < now->count && !found; i++) {
            m.work++;
            if (takes(&m, &pattern->steps[now->at[i]], c))
                found = add_place(&m, next, now->at[i] + 1u);
        }
        places *const was = now;
        now = next;
        next = was;
    }
    if (work != NULL)
        *work += m.work;
    return found;
}

bool tsr_pattern_knows(const tsr_pattern *pattern, const char *name)
{
    for (; pattern->ascii && *name != '\0'; name++) {
        if ((unsigned char)*name >= 0x80)
            return false;
    }
    return true;
}
