/* Matches rules by merging two sorted lists of names, so that 100,000 rules and as many tensors take no longer than
 * reading them. */
#include "convert/search/rules_match.h"

#include "common/glob.h"
#include "formats/names/coding.h"

#include <stdlib.h>
#include <string.h>

/* Step limits: STEPS take less than a second, and STEPS_A_BYTE allow about as much again per 25 MB of tensors. */
enum { STEPS = 250000000, STEPS_A_BYTE = 10 };

/* A name that a pattern may match: a tensor's or its module's. */
typedef struct key {
    const char *text;
    size_t size, tensor;
} key;

typedef struct matching {
    tsr_rules_match *found;
    const tsr_scheme_rules *rules;
    key *by_begin, *by_end; /* the names sorted forwards, and sorted backwards from the last character */
    size_t n;
    size_t left; /* tensors that no pattern has matched yet */
    uint64_t most;
} matching;

/* ---- lists ---- */

static int by_begin(const void *a, const void *b)
{
    return strcmp(((const key *)a)->text, ((const key *)b)->text);
}

/* Compares the last `n` characters of both, read backwards. */
static int compare_ends(const char *a_end, const char *b_end, size_t n)
{
    for (size_t i = 1; i <= n; i++) {
        if (a_end[-(ptrdiff_t)i] != b_end[-(ptrdiff_t)i])
            return (unsigned char)a_end[-(ptrdiff_t)i] < (unsigned char)b_end[-(ptrdiff_t)i] ? -1 : 1;
    }
    return 0;
}

static int by_end(const void *a, const void *b)
{
    const key *const x = a, *const y = b;
    const int order = compare_ends(x->text + x->size, y->text + y->size, x->size < y->size ? x->size : y->size);
    return order != 0 ? order : (x->size > y->size) - (x->size < y->size);
}

static tsr_status list_keys(matching *m, const tsr_checkpoint *c, tsr_arena *arena, tsr_err *err)
{
    m->by_begin = tsr_arena_alloc(arena, (2 * c->tensors.count + 1) * sizeof *m->by_begin);
    m->by_end = tsr_arena_alloc(arena, (2 * c->tensors.count + 1) * sizeof *m->by_end);
    TSR_TRY(tsr_arena_status(arena, TSR_OK, err));
    for (size_t i = 0; i < c->tensors.count; i++) {
        const char *const name = c->tensors.items[i].name;
        const size_t module = tsr_module_length(name);
        m->by_begin[m->n++] = (key){name, strlen(name), i};
        if (name[module] != '\0')
            m->by_begin[m->n++] = (key){tsr_arena_dup(arena, name, module), module, i};
    }
    TSR_TRY(tsr_arena_status(arena, TSR_OK, err));
    memcpy(m->by_end, m->by_begin, m->n * sizeof *m->by_end);
    qsort(m->by_begin, m->n, sizeof *m->by_begin, by_begin);
    qsort(m->by_end, m->n, sizeof *m->by_end, by_end);
    return TSR_OK;
}

/* ---- searching ---- */

/* A prefix or suffix that a name must have. */
typedef struct part {
    const char *text;
    size_t size;
    bool end;
} part;

/* Compares a key with a part. Returns 0 if the key has it. */
static int compare(const key *k, const part *p)
{
    if (!p->end)
        return strncmp(k->text, p->text, p->size);
    const size_t n = k->size < p->size ? k->size : p->size;
    const int order = compare_ends(k->text + k->size, p->text + p->size, n);
    return order != 0 ? order : -(k->size < p->size);
}

/* Returns the first key that is not below the part or, if `past` is set, the first key above it. */
static size_t search(matching *m, const part *p, bool past)
{
    const key *const keys = p->end ? m->by_end : m->by_begin;
    size_t low = 0, high = m->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = compare(&keys[middle], p);
        m->found->steps++;
        if (order < 0 || (past && order == 0))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

typedef struct range {
    const key *begin, *end;
} range;

static range keys_with(matching *m, part p)
{
    const key *const keys = p.end ? m->by_end : m->by_begin;
    return (range){keys + search(m, &p, false), keys + search(m, &p, true)};
}

/* ---- matching ---- */

static void take(matching *m, size_t item, size_t tensor)
{
    m->found->fits[item] = true;
    if (m->found->of[tensor] != NULL)
        return;
    m->found->of[tensor] = &m->rules->items[item];
    m->left--;
}

/* Looks up a name. Its terminating zero is included, so that it is not a prefix of longer names. */
static void look_up(matching *m, size_t item)
{
    const char *const name = m->rules->items[item].pattern;
    const range r = keys_with(m, (part){name, strlen(name) + 1, false});
    for (const key *k = r.begin; k < r.end; k++)
        take(m, item, k->tensor);
}

static bool try_all(matching *m, size_t item)
{
    const char *const pattern = m->rules->items[item].pattern, *last = strpbrk(pattern, TSR_GLOB_SPECIAL);
    const range begin = keys_with(m, (part){pattern, (size_t)(last - pattern), false});
    for (const char *at = last; at != NULL; at = strpbrk(at + 1, TSR_GLOB_SPECIAL "]"))
        last = at;
    const range end = keys_with(m, (part){last + 1, strlen(last + 1), true});
    const range r = end.end - end.begin < begin.end - begin.begin ? end : begin;
    for (const key *k = r.begin; k < r.end && m->found->steps <= m->most; k++) {
        m->found->steps++;
        if (m->found->fits[item] && m->left == 0)
            break;
        if (m->found->fits[item] && m->found->of[k->tensor] != NULL)
            continue;
        if (tsr_glob_match_counting(pattern, k->text, &m->found->steps))
            take(m, item, k->tensor);
    }
    return m->found->steps <= m->most;
}

static uint64_t most_steps(const tsr_checkpoint *c)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < c->tensors.count; i++)
        bytes += c->tensors.items[i].bytes; /* sizes were checked against the files when they were opened */
    return STEPS + (bytes > UINT64_MAX / 2 / STEPS_A_BYTE ? UINT64_MAX / 2 : bytes * STEPS_A_BYTE);
}

tsr_status tsr_rules_match_all(tsr_rules_match *match, const tsr_scheme_rules *rules, const tsr_checkpoint *c,
                               tsr_arena *arena, tsr_err *err)
{
    matching m = {.found = match, .rules = rules, .left = c->tensors.count, .most = most_steps(c)};
    *match = (tsr_rules_match){.of = tsr_arena_alloc(arena, (c->tensors.count + 1) * sizeof *match->of),
                               .fits = tsr_arena_alloc(arena, rules->count + 1)};
    TSR_TRY(list_keys(&m, c, arena, err));
    for (size_t i = 0; i < rules->count; i++) {
        if (tsr_rules_is_name(&rules->items[i]))
            look_up(&m, i);
        else if (!try_all(&m, i))
            return tsr_fail(err, TSR_E_UNSUPPORTED,
                            "%s: matching its wildcard patterns with the names of %s takes more than %llu steps, "
                            "reached at '%.80s'; write full names, which are looked up directly",
                            rules->path, c->path, U64(m.most), rules->items[i].pattern);
    }
    return TSR_OK;
}
