/* Adds inputs of layers to sums per channel, and to ranges. */
#include "verify/forward/collect/collector.h"

#include "common/grow.h"
#include "formats/names/shared_input.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static tsr_status out_of_memory(tsr_err *err)
{
    return tsr_out_of_memory(err, "for statistics of inputs");
}

void tsr_collector_begin_layer(tsr_collector *c)
{
    c->first = c->count;
}

/* Returns the length of a module's name without its last component. */
static size_t parent_length(const char *module)
{
    const char *const dot = strrchr(module, '.');
    return dot == NULL ? 0 : (size_t)(dot - module);
}

/* Returns 1 + the index of a recent module below the same parent that has the same input, such as q_proj for k_proj; or
 * 0. */
static size_t find_twin(const tsr_collector *c, const char *module)
{
    enum { RECENT = 4 };
    tsr_shared_input own, other;
    const size_t parent = parent_length(module);
    if (!tsr_shared_input_of(module, strlen(module), &own))
        return 0;
    for (size_t i = c->count; i > c->first && i + RECENT > c->count; i--) {
        const char *const name = c->items[i - 1].module;
        if (parent_length(name) == parent && strncmp(name, module, parent) == 0 &&
            tsr_shared_input_of(name, strlen(name), &other) && strcmp(own.name, other.name) == 0)
            return i;
    }
    return 0;
}

/* Returns the module's entry, which it adds if there is none; NULL: out of memory. */
static tsr_collected *entry_of(tsr_collector *c, const char *module, size_t matrices, size_t cols, bool channels)
{
    for (size_t i = c->count; i > c->first; i--) {
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
                         .pooled = tsr_arena_alloc(&c->arena, matrices * sizeof *e->pooled),
                         .twin = channels ? find_twin(c, module) : 0};
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

/* Returns true if the twin of a module has the rows that the module is to get. */
static bool has_rows(const tsr_collector *c, const tsr_collected *e, const tsr_collected_rows *r)
{
    const tsr_collected *const twin = e->twin == 0 ? NULL : &c->items[e->twin - 1];
    return twin != NULL && twin->cols == e->cols && twin->matrices == e->matrices &&
           twin->tokens[r->matrix] == e->tokens[r->matrix] + r->n;
}

/* Takes the sums of a matrix over from a module that got the same rows just before. */
static void copy_sums(tsr_collected *to, const tsr_collected *from, size_t matrix)
{
    memcpy(to->sum_x2 + matrix * to->cols, from->sum_x2 + matrix * to->cols, to->cols * sizeof *to->sum_x2);
    to->least[matrix] = from->least[matrix];
    to->largest[matrix] = from->largest[matrix];
    to->tokens[matrix] = from->tokens[matrix];
}

static tsr_status add_products(const tsr_collector *c, const tsr_collected_rows *r, tsr_err *err)
{
    const tsr_product_rows all = {
        .module = r->module, .matrices = r->matrices, .matrix = r->matrix, .x = r->x, .n = r->n, .cols = r->cols};
    return c->products == NULL ? TSR_OK : tsr_input_products_add(c->products, &all, err);
}

tsr_status tsr_collect(tsr_collector *c, const tsr_collected_rows *r, tsr_err *err)
{
    tsr_collected *const e = entry_of(c, r->module, r->matrices, r->cols, true);
    if (e == NULL)
        return out_of_memory(err);
    if (r->x == NULL || r->n == 0 || r->cols == 0)
        return TSR_OK;
    if (has_rows(c, e, r)) {
        copy_sums(e, &c->items[e->twin - 1], r->matrix);
        return add_products(c, r, err);
    }
    tsr_op_columns sums = {.x = r->x, .n = r->n, .cols = r->cols, .squares = e->sum_x2 + r->matrix * r->cols};
    TSR_TRY(c->ops->columns(c->ops, &sums, err));
    TSR_TRY(add_range(e, r->matrix, r->n, sums.least, sums.largest, err));
    return add_products(c, r, err);
}

tsr_status tsr_collect_range(tsr_collector *c, const char *module, const tsr_activation *x, size_t n, tsr_err *err)
{
    enum { WIDTH = 64 };
    tsr_collected *const e = entry_of(c, module, 1, 0, false);
    if (e == NULL)
        return out_of_memory(err);
    const size_t rows = n / WIDTH;
    tsr_op_columns whole = {.x = x, .n = rows, .cols = WIDTH},
                   rest = {.x = tsr_at(c->ops, x, rows * WIDTH), .n = 1, .cols = n % WIDTH};
    if (rows > 0) {
        TSR_TRY(c->ops->columns(c->ops, &whole, err));
        TSR_TRY(add_range(e, 0, rows * WIDTH, whole.least, whole.largest, err));
    }
    if (rest.cols == 0)
        return TSR_OK;
    TSR_TRY(c->ops->columns(c->ops, &rest, err));
    return add_range(e, 0, rest.cols, rest.least, rest.largest, err);
}

void tsr_collector_free(tsr_collector *c)
{
    free(c->items);
    tsr_arena_free(&c->arena);
    *c = (tsr_collector){0};
}
