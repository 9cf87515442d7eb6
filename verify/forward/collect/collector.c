/* Adds inputs of layers to sums per channel, and to ranges. */
#include "verify/forward/collect/collector.h"

#include "common/grow.h"
#include "common/parallel/parallel_for.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 64 /* channels that a thread sums at a time */ };

static tsr_status out_of_memory(tsr_err *err)
{
    return tsr_out_of_memory(err, "for statistics of inputs");
}

/* Returns the module's entry, which it adds if there is none; NULL: out of memory. */
static tsr_collected *entry_of(tsr_collector *c, const char *module, size_t matrices, size_t cols, bool channels)
{
    enum { RECENT = 4 };
    for (size_t i = c->count; i > 0 && i + RECENT > c->count; i--) {
        if (strcmp(c->items[i - 1].module, module) == 0)
            return &c->items[i - 1];
    }
    if (!tsr_grow(&c->items, c->count, &c->capacity, sizeof *c->items))
        return NULL;
    tsr_collected *const e = &c->items[c->count];
    *e = (tsr_collected){.module = tsr_arena_dup(&c->arena, module, strlen(module)),
                         .matrices = matrices,
                         .cols = cols,
                         .sum_x2 = channels ? tsr_arena_alloc(&c->arena, matrices * cols * sizeof *e->sum_x2) : NULL,
                         .least = tsr_arena_alloc(&c->arena, matrices * sizeof *e->least),
                         .largest = tsr_arena_alloc(&c->arena, matrices * sizeof *e->largest),
                         .tokens = tsr_arena_alloc(&c->arena, matrices * sizeof *e->tokens),
                         .pooled = tsr_arena_alloc(&c->arena, matrices * sizeof *e->pooled)};
    if (e->module == NULL || (channels && e->sum_x2 == NULL) || e->least == NULL || e->largest == NULL ||
        e->tokens == NULL || e->pooled == NULL)
        return NULL;
    c->count++;
    return e;
}

static tsr_status add_range(tsr_collected *e, size_t matrix, uint64_t tokens, double least, double largest,
                            tsr_err *err)
{
    if (!isfinite(least) || !isfinite(largest))
        return tsr_fail(err, TSR_E_VALUE, "an input of '%s' is NaN or infinite: the model does not run on these tokens",
                        e->module);
    const bool first = e->tokens[matrix] == 0;
    e->least[matrix] = first || least < e->least[matrix] ? least : e->least[matrix];
    e->largest[matrix] = first || largest > e->largest[matrix] ? largest : e->largest[matrix];
    e->tokens[matrix] += tokens;
    return TSR_OK;
}

/* ---- channels ---- */

typedef struct adding {
    const tsr_collected_rows *rows;
    double *sums;            /* [cols] */
    double *least, *largest; /* [blocks of COLUMNS] */
} adding;

static tsr_status add_columns(void *context, size_t block, size_t worker, tsr_err *err)
{
    const adding *const a = context;
    const tsr_collected_rows *const r = a->rows;
    const size_t from = block * COLUMNS, to = from + COLUMNS < r->cols ? from + COLUMNS : r->cols;
    double least = r->x[from], largest = least;
    bool finite = true;
    (void)worker;
    (void)err;
    for (size_t row = 0; row < r->n; row++) {
        for (size_t i = from; i < to; i++) {
            const double x = r->x[row * r->cols + i];
            a->sums[i] += x * x;
            least = x < least ? x : least;
            largest = x > largest ? x : largest;
            finite = finite && isfinite(x);
        }
    }
    a->least[block] = finite ? least : NAN;
    a->largest[block] = largest;
    return TSR_OK;
}

tsr_status tsr_collect(tsr_collector *c, const tsr_collected_rows *r, tsr_err *err)
{
    tsr_collected *const e = entry_of(c, r->module, r->matrices, r->cols, true);
    if (e == NULL)
        return out_of_memory(err);
    if (r->x == NULL || r->n == 0 || r->cols == 0)
        return TSR_OK;
    const size_t blocks = (r->cols + COLUMNS - 1) / COLUMNS;
    double *const ranges = malloc(2 * blocks * sizeof *ranges);
    if (ranges == NULL)
        return out_of_memory(err);
    adding a = {r, e->sum_x2 + r->matrix * r->cols, ranges, ranges + blocks};
    tsr_status status = tsr_parallel_for(blocks, c->threads, NULL, add_columns, &a, err);
    double least = a.least[0], largest = a.largest[0];
    for (size_t i = 1; i < blocks; i++) {
        least = a.least[i] < least || isnan(a.least[i]) ? a.least[i] : least;
        largest = a.largest[i] > largest ? a.largest[i] : largest;
    }
    if (status == TSR_OK)
        status = add_range(e, r->matrix, r->n, least, largest, err);
    free(ranges);
    return status;
}

/* ---- ranges ---- */

tsr_status tsr_collect_range(tsr_collector *c, const char *module, const double *x, size_t n, tsr_err *err)
{
    tsr_collected *const e = entry_of(c, module, 1, 0, false);
    if (e == NULL)
        return out_of_memory(err);
    double least = INFINITY, largest = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        least = x[i] < least || isnan(x[i]) ? x[i] : least;
        largest = x[i] > largest ? x[i] : largest;
    }
    return n == 0 ? TSR_OK : add_range(e, 0, n, least, largest, err);
}

void tsr_collector_free(tsr_collector *c)
{
    free(c->items);
    tsr_arena_free(&c->arena);
    *c = (tsr_collector){0};
}
