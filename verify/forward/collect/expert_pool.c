/* Gives experts that saw few tokens the statistics of all experts of their layer. */
#include "verify/forward/collect/collector.h"

#include "formats/names/coding.h"

#include <stdlib.h>
#include <string.h>

/* One expert's projection: matrix `matrix` of an entry. */
typedef struct member {
    const char *key; /* the module without the expert's number: equal for all experts of a layer */
    tsr_collected *entry;
    size_t matrix;
} member;

typedef struct pool {
    double *sum_x2; /* [cols] */
    double least, largest;
    uint64_t tokens;
} pool;

static int by_key(const void *a, const void *b)
{
    const member *const x = a, *const y = b;
    const int order = strcmp(x->key, y->key);
    return order != 0 ? order : x->entry != y->entry ? (x->entry < y->entry ? -1 : 1) : x->matrix < y->matrix ? -1 : 1;
}

/* Lists all experts' projections. Returns NULL when memory is exhausted. */
static member *list_members(const tsr_collector *c, tsr_arena *arena, size_t *n)
{
    size_t most = 1;
    for (size_t i = 0; i < c->count; i++)
        most += c->items[i].matrices;
    member *const members = calloc(most, sizeof *members);
    *n = 0;
    for (size_t i = 0; members != NULL && i < c->count; i++) {
        tsr_collected *const e = &c->items[i];
        size_t digits;
        const size_t length = tsr_experts_length(e->module, &digits);
        if (e->sum_x2 == NULL || (e->matrices == 1 && digits == 0))
            continue;
        const char *const key =
            digits == 0 ? e->module
                        : tsr_arena_printf(arena, "%.*s%s", (int)length, e->module, e->module + length + digits);
        for (size_t k = 0; k < e->matrices; k++)
            members[(*n)++] = (member){key, e, k};
    }
    if (*n > 0)
        qsort(members, *n, sizeof *members, by_key);
    return members;
}

static void add_to_pool(pool *p, const member *m)
{
    const tsr_collected *const e = m->entry;
    if (e->tokens[m->matrix] == 0)
        return;
    for (size_t i = 0; i < e->cols; i++)
        p->sum_x2[i] += e->sum_x2[m->matrix * e->cols + i];
    p->least = p->tokens == 0 || e->least[m->matrix] < p->least ? e->least[m->matrix] : p->least;
    p->largest = p->tokens == 0 || e->largest[m->matrix] > p->largest ? e->largest[m->matrix] : p->largest;
    p->tokens += e->tokens[m->matrix];
}

/* Replaces the statistics of a member. They are means, so that its own number of tokens stays. */
static void take_from_pool(const pool *p, const member *m)
{
    tsr_collected *const e = m->entry;
    const uint64_t own = e->tokens[m->matrix];
    const double share = (own == 0 ? 1 : (double)own) / (double)p->tokens;
    for (size_t i = 0; i < e->cols; i++)
        e->sum_x2[m->matrix * e->cols + i] = p->sum_x2[i] * share;
    e->least[m->matrix] = p->least;
    e->largest[m->matrix] = p->largest;
    e->pooled[m->matrix] = true;
}

/* Handles the members first .. end, which have one key. */
static tsr_status pool_layer(const member *members, size_t first, size_t end, uint64_t least, tsr_err *err)
{
    pool p = {.sum_x2 = calloc(members[first].entry->cols + 1, sizeof *p.sum_x2)};
    if (p.sum_x2 == NULL)
        return tsr_out_of_memory(err, "for statistics of experts");
    for (size_t i = first; i < end; i++)
        add_to_pool(&p, &members[i]);
    for (size_t i = first; i < end && p.tokens > 0; i++) {
        if (members[i].entry->tokens[members[i].matrix] < least)
            take_from_pool(&p, &members[i]);
    }
    free(p.sum_x2);
    return TSR_OK;
}

/* Counts the experts of a layer, by one of its projections. */
static void count(tsr_expert_coverage *c, const member *members, size_t first, size_t end, uint64_t least)
{
    c->layers++;
    for (size_t i = first; i < end; i++) {
        const uint64_t tokens = members[i].entry->tokens[members[i].matrix];
        if (c->fewest_name == NULL || tokens < c->fewest) {
            c->fewest = tokens;
            c->fewest_name = members[i].entry->module;
        }
        c->experts++;
        c->few += tokens < least;
        c->unseen += tokens == 0;
    }
}

/* Returns true if the keys name projections of one layer: they agree up to the experts. */
static bool same_layer(const char *a, const char *b)
{
    const char *const end = strstr(a, "experts");
    return end != NULL && strncmp(a, b, (size_t)(end - a)) == 0;
}

tsr_status tsr_collector_pool_experts(tsr_collector *c, uint64_t least, tsr_expert_coverage *coverage, tsr_err *err)
{
    tsr_arena arena = {0};
    size_t n;
    member *const members = list_members(c, &arena, &n);
    const char *counted = NULL;
    *coverage = (tsr_expert_coverage){0};
    tsr_status status = tsr_arena_status(&arena, TSR_OK, err);
    if (members == NULL)
        status = tsr_out_of_memory(err, "for statistics of experts");
    for (size_t first = 0, end; status == TSR_OK && first < n; first = end) {
        for (end = first + 1; end < n && strcmp(members[end].key, members[first].key) == 0;)
            end++;
        if (counted == NULL || !same_layer(counted, members[first].key))
            count(coverage, members, first, end, least);
        counted = members[first].key;
        status = pool_layer(members, first, end, least, err);
    }
    free(members);
    tsr_arena_free(&arena);
    return status;
}
