/* Solves the knapsack: convex hulls, a walk over their slopes, and the choices that are kept while groups are
 * opened. */
#include "convert/search/scheme_choice.h"

#include "common/arena.h"
#include "common/checked.h"
#include "common/text.h"

#include <stdlib.h>
#include <string.h>

/* Limits: choices kept at a time, and back pointers of all groups together. */
enum { MOST_CHOICES = 4096, LEAST_CHOICES = 64, MOST_POINTERS = 1 << 23 };

/* The options of a group that are not dominated, sorted: bytes rise, errors fall. */
typedef struct front {
    size_t *options, n;
    size_t *hull, n_hull; /* the options on the lower convex hull */
    size_t base;          /* the option in the relaxed solution */
} front;

/* A step from one option of a hull to the next larger one. */
typedef struct segment {
    double slope; /* error saved per byte */
    size_t group, from, to;
} segment;

/* A choice for the opened groups; all other groups have the relaxed solution's options. */
typedef struct state {
    uint64_t bytes;
    double error;
    uint32_t parent; /* index among the states before this group was opened */
    uint32_t option;
} state;

typedef struct pointer {
    uint32_t parent, option;
} pointer;

/* A group that was opened. */
typedef struct level {
    size_t group;
    pointer *pointers;
} level;

typedef struct solving {
    const tsr_choice_group *groups;
    size_t n;
    uint64_t budget;
    front *fronts;
    segment *segments;
    size_t n_segments;
    size_t *picked;
    double price; /* price of a byte */
    double relaxed, best, given_up;

    level *levels;
    size_t n_levels;
    size_t best_level; /* the level, state and option where the best choice was found; level 0: before any group was
                        * opened */
    pointer best_at;
    state *states, *merged, *shifted;
    double *bounds;
    size_t n_states, most;
    tsr_arena arena;
} solving;

static const tsr_choice_option *option_of(const solving *s, size_t group, size_t option)
{
    return &s->groups[group].options[option];
}

/* ---- fronts and hulls ---- */

typedef struct sortable {
    const tsr_choice_option *option;
    size_t index;
} sortable;

static int by_bytes(const void *a, const void *b)
{
    const sortable *const x = a, *const y = b;
    if (x->option->bytes != y->option->bytes)
        return x->option->bytes < y->option->bytes ? -1 : 1;
    if (x->option->error < y->option->error || x->option->error > y->option->error)
        return x->option->error < y->option->error ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static double slope_of(const solving *s, size_t group, size_t from, size_t to)
{
    const tsr_choice_option *const a = option_of(s, group, from), *const b = option_of(s, group, to);
    return (a->error - b->error) / (double)(b->bytes - a->bytes);
}

static bool make_front(solving *s, size_t group)
{
    const tsr_choice_group *const g = &s->groups[group];
    front *const f = &s->fronts[group];
    sortable *const sorted = tsr_arena_alloc(&s->arena, g->n * sizeof *sorted);
    f->options = tsr_arena_alloc(&s->arena, g->n * sizeof *f->options);
    f->hull = tsr_arena_alloc(&s->arena, g->n * sizeof *f->hull);
    if (sorted == NULL || f->options == NULL || f->hull == NULL)
        return false;
    for (size_t i = 0; i < g->n; i++)
        sorted[i] = (sortable){&g->options[i], i};
    qsort(sorted, g->n, sizeof *sorted, by_bytes);
    for (size_t i = 0; i < g->n; i++) {
        if (f->n == 0 || sorted[i].option->error < g->options[f->options[f->n - 1]].error)
            f->options[f->n++] = sorted[i].index;
    }
    for (size_t i = 0; i < f->n; i++) {
        while (f->n_hull >= 2 && slope_of(s, group, f->hull[f->n_hull - 2], f->hull[f->n_hull - 1]) <=
                                     slope_of(s, group, f->hull[f->n_hull - 1], f->options[i]))
            f->n_hull--;
        f->hull[f->n_hull++] = f->options[i];
    }
    s->n_segments += f->n_hull - 1;
    return true;
}

static int by_slope(const void *a, const void *b)
{
    const segment *const x = a, *const y = b;
    if (x->slope < y->slope || x->slope > y->slope)
        return x->slope > y->slope ? -1 : 1;
    return x->group < y->group ? -1 : x->group > y->group;
}

static void sort_segments(solving *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const front *const f = &s->fronts[i];
        for (size_t k = 0; k + 1 < f->n_hull; k++)
            s->segments[n++] = (segment){slope_of(s, i, f->hull[k], f->hull[k + 1]), i, f->hull[k], f->hull[k + 1]};
    }
    qsort(s->segments, n, sizeof *s->segments, by_slope);
}

/* ---- the relaxed solution, and its rounding ---- */

/* Returns the bytes of the picked options, and their error. */
static uint64_t bytes_of(const solving *s, double *error)
{
    uint64_t bytes = 0;
    *error = 0;
    for (size_t i = 0; i < s->n; i++) {
        bytes += option_of(s, i, s->picked[i])->bytes;
        *error += option_of(s, i, s->picked[i])->error;
    }
    return bytes;
}

static bool grow(solving *s, const segment *at, uint64_t *bytes)
{
    const uint64_t more = option_of(s, at->group, at->to)->bytes - option_of(s, at->group, at->from)->bytes;
    if (s->picked[at->group] != at->from || more > s->budget - *bytes)
        return false;
    s->picked[at->group] = at->to;
    *bytes += more;
    return true;
}

/* Walks down the slopes. The options picked at the end are the relaxed solution without its fractional part. */
static void relax(solving *s, uint64_t bytes, state *start)
{
    size_t at = 0;
    while (at < s->n_segments && grow(s, &s->segments[at], &bytes))
        at++;
    s->price = at < s->n_segments ? s->segments[at].slope : 0;
    start->bytes = bytes_of(s, &start->error);
    s->relaxed = start->error - s->price * (double)(s->budget - start->bytes);
    for (size_t i = 0; i < s->n; i++)
        s->fronts[i].base = s->picked[i];
    for (; at < s->n_segments; at++)
        (void)grow(s, &s->segments[at], &bytes);
    (void)bytes_of(s, &s->best);
}

/* ---- opening groups ---- */

static double bound_of(const solving *s, const state *x)
{
    return x->bytes <= s->budget ? x->error - s->price * (double)(s->budget - x->bytes)
                                 : x->error + s->price * (double)(x->bytes - s->budget);
}

/* Returns the cost of an option above the relaxed solution, at the price of a byte. */
static double excess_of(const solving *s, size_t group, size_t option)
{
    const tsr_choice_option *const a = option_of(s, group, s->fronts[group].base), *const b =
                                                                                       option_of(s, group, option);
    return b->error - a->error + s->price * ((double)b->bytes - (double)a->bytes);
}

typedef struct ranked {
    double excess;
    size_t group;
} ranked;

static int by_excess(const void *a, const void *b)
{
    const ranked *const x = a, *const y = b;
    if (x->excess < y->excess || x->excess > y->excess)
        return x->excess < y->excess ? -1 : 1;
    return x->group < y->group ? -1 : x->group > y->group;
}

/* Merges two lists in which bytes rise and errors fall into one of the same kind. */
static size_t merge(const state *a, size_t n_a, const state *b, size_t n_b, state *to)
{
    size_t i = 0, k = 0, n = 0;
    while (i < n_a || k < n_b) {
        const bool first =
            k == n_b ||
            (i < n_a && (a[i].bytes < b[k].bytes || (a[i].bytes == b[k].bytes && a[i].error <= b[k].error)));
        const state *const x = first ? &a[i++] : &b[k++];
        if (n == 0 || x->error < to[n - 1].error)
            to[n++] = *x;
    }
    return n;
}

/* Drops merged choices that cannot beat the best one, and the least promising ones if there are too many. */
static void thin_out(solving *s, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        const double bound = bound_of(s, &s->merged[i]);
        if (bound < s->best) {
            s->bounds[kept] = bound;
            s->states[kept++] = s->merged[i];
        }
    }
    s->n_states = kept;
    if (kept <= s->most)
        return;
    qsort(s->bounds, kept, sizeof *s->bounds, tsr_by_number);
    const double worst = s->bounds[s->most];
    s->given_up = worst < s->given_up ? worst : s->given_up;
    s->n_states = 0;
    for (size_t i = 0; i < kept; i++) {
        if (bound_of(s, &s->states[i]) < worst)
            s->states[s->n_states++] = s->states[i];
    }
}

/* Lists the choices with this option in place of the relaxed solution's. */
static void shift(const solving *s, size_t group, size_t option)
{
    const tsr_choice_option *const a = option_of(s, group, s->fronts[group].base), *const b =
                                                                                       option_of(s, group, option);
    for (size_t i = 0; i < s->n_states; i++)
        s->shifted[i] = (state){.bytes = s->states[i].bytes - a->bytes + b->bytes,
                                .error = s->states[i].error - a->error + b->error,
                                .parent = (uint32_t)i,
                                .option = (uint32_t)option};
}

static bool open_group(solving *s, size_t group)
{
    const front *const f = &s->fronts[group];
    size_t n = 0;
    state *spare = s->merged + (s->most + 1) * f->n;
    for (size_t i = 0; i < f->n; i++) {
        if (f->options[i] != f->base && excess_of(s, group, f->options[i]) >= s->best - s->relaxed)
            continue;
        shift(s, group, f->options[i]);
        memcpy(spare, s->merged, n * sizeof *spare);
        n = merge(spare, n, s->shifted, s->n_states, s->merged);
    }
    s->n_levels++;
    for (size_t i = 0; i < n; i++) {
        if (s->merged[i].bytes > s->budget || s->merged[i].error >= s->best)
            continue;
        s->best = s->merged[i].error;
        s->best_level = s->n_levels;
        s->best_at = (pointer){s->merged[i].parent, s->merged[i].option};
    }
    thin_out(s, n);
    level *const l = &s->levels[s->n_levels];
    *l = (level){group, tsr_arena_alloc(&s->arena, (s->n_states + 1) * sizeof *l->pointers)};
    for (size_t i = 0; i < s->n_states && l->pointers != NULL; i++)
        l->pointers[i] = (pointer){s->states[i].parent, s->states[i].option};
    return l->pointers != NULL;
}

/* Copies the best choice to `picked`. */
static void take_best(solving *s)
{
    if (s->best_level == 0)
        return;
    for (size_t i = 0; i < s->n; i++)
        s->picked[i] = s->fronts[i].base;
    pointer at = s->best_at;
    for (size_t l = s->best_level; l > 0; l--) {
        s->picked[s->levels[l].group] = at.option;
        if (l > 1)
            at = s->levels[l - 1].pointers[at.parent];
    }
}

static tsr_status open_groups(solving *s, tsr_err *err)
{
    ranked *const order = tsr_arena_alloc(&s->arena, (s->n + 1) * sizeof *order);
    if (order == NULL)
        return tsr_out_of_memory(err, NULL);
    for (size_t i = 0; i < s->n; i++) {
        const front *const f = &s->fronts[i];
        order[i] = (ranked){1e300, i};
        for (size_t k = 0; k < f->n; k++) {
            const double excess = f->options[k] == f->base ? 1e300 : excess_of(s, i, f->options[k]);
            order[i].excess = excess < order[i].excess ? excess : order[i].excess;
        }
    }
    qsort(order, s->n, sizeof *order, by_excess);
    for (size_t i = 0; i < s->n && s->n_states > 0 && order[i].excess < s->best - s->relaxed; i++) {
        if (!open_group(s, order[i].group))
            return tsr_out_of_memory(err, NULL);
    }
    take_best(s);
    return TSR_OK;
}

static bool allocate(solving *s)
{
    size_t options = 1;
    s->fronts = tsr_arena_alloc(&s->arena, (s->n + 1) * sizeof *s->fronts);
    s->levels = tsr_arena_alloc(&s->arena, (s->n + 2) * sizeof *s->levels);
    for (size_t i = 0; i < s->n && s->fronts != NULL; i++) {
        options = s->groups[i].n > options ? s->groups[i].n : options;
        if (!make_front(s, i))
            return false;
    }
    s->most = (size_t)tsr_max_u64(LEAST_CHOICES, tsr_min_u64(MOST_CHOICES, MOST_POINTERS / (s->n + 1)));
    const size_t room = (s->most + 1) * options;
    s->segments = tsr_arena_alloc(&s->arena, (s->n_segments + 1) * sizeof *s->segments);
    s->states = tsr_arena_alloc(&s->arena, room * sizeof *s->states);
    s->shifted = tsr_arena_alloc(&s->arena, (s->most + 1) * sizeof *s->shifted);
    s->merged = tsr_arena_alloc(&s->arena, 2 * room * sizeof *s->merged);
    s->bounds = tsr_arena_alloc(&s->arena, room * sizeof *s->bounds);
    return s->fronts != NULL && s->levels != NULL && s->segments != NULL && s->states != NULL && s->shifted != NULL &&
           s->merged != NULL && s->bounds != NULL;
}

tsr_status tsr_scheme_choice(const tsr_choice_group *groups, size_t n, uint64_t budget, size_t *picked,
                             tsr_choice *choice, tsr_err *err)
{
    solving s = {.groups = groups, .n = n, .budget = budget, .picked = picked, .given_up = 1e300};
    tsr_status status = allocate(&s) ? TSR_OK : tsr_out_of_memory(err, "while choosing schemes");
    *choice = (tsr_choice){.fits = false};
    if (status == TSR_OK) {
        double error;
        for (size_t i = 0; i < n; i++)
            picked[i] = s.fronts[i].options[0];
        choice->least = bytes_of(&s, &error);
        choice->fits = choice->least <= budget;
    }
    if (status == TSR_OK && choice->fits) {
        sort_segments(&s);
        relax(&s, choice->least, &s.states[0]);
        s.n_states = 1;
        status = open_groups(&s, err);
        choice->bytes = bytes_of(&s, &choice->error);
        choice->bound = s.given_up < choice->error ? s.given_up : choice->error;
    }
    tsr_arena_free(&s.arena);
    return status;
}
