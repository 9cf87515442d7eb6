/* Stores a collector and its products between layers of a run, and takes them up again. */
#include "verify/forward/collect/collector.h"

#include "common/grow.h"

#include <stdlib.h>
#include <string.h>

/* ---- writing ---- */

static void put(tsr_text *t, const void *data, size_t size)
{
    tsr_text_append(t, data, size);
}

static void put_size(tsr_text *t, size_t n)
{
    put(t, &n, sizeof n);
}

static void put_name(tsr_text *t, const char *name)
{
    put_size(t, strlen(name));
    put(t, name, strlen(name));
}

static void put_entry(tsr_text *t, const tsr_collected *e)
{
    put_name(t, e->module);
    put_size(t, e->matrices);
    put_size(t, e->cols);
    put_size(t, e->sum_x2 != NULL);
    if (e->sum_x2 != NULL)
        put(t, e->sum_x2, e->matrices * e->cols * sizeof *e->sum_x2);
    put(t, e->least, e->matrices * sizeof *e->least);
    put(t, e->largest, e->matrices * sizeof *e->largest);
    put(t, e->tokens, e->matrices * sizeof *e->tokens);
}

void tsr_collector_store(const tsr_collector *c, tsr_text *to)
{
    const tsr_input_products *const p = c->products;
    put_size(to, c->count);
    for (size_t i = 0; i < c->count; i++)
        put_entry(to, &c->items[i]);
    put_size(to, p == NULL ? 0 : p->count);
    for (size_t i = 0; p != NULL && i < p->count; i++) {
        put_name(to, p->done[i].name);
        put_size(to, p->done[i].matrices);
        put_size(to, p->done[i].cols);
        put_size(to, (size_t)p->done[i].offset);
    }
    put_size(to, p == NULL ? 0 : (size_t)p->bytes);
    put_size(to, p == NULL ? 0 : p->skipped);
}

/* ---- reading ---- */

typedef struct cursor {
    const char *data;
    size_t size, at;
    tsr_arena *arena; /* memory for names and arrays */
    bool failed;      /* the data end early, or memory is exhausted */
} cursor;

static void take(cursor *c, void *to, size_t size)
{
    c->failed = c->failed || to == NULL || size > c->size - c->at;
    if (c->failed)
        return;
    memcpy(to, c->data + c->at, size);
    c->at += size;
}

static size_t take_size(cursor *c)
{
    size_t n = 0;
    take(c, &n, sizeof n);
    return c->failed ? 0 : n;
}

/* Takes n elements of `size` bytes into new memory. */
static void *take_array(cursor *c, size_t n, size_t size)
{
    const bool fits = size == 0 || n <= (c->size - c->at) / size;
    c->failed = c->failed || !fits;
    void *const to = c->failed ? NULL : tsr_arena_alloc(c->arena, n * size + 1);
    take(c, to, n * size);
    return to;
}

static const char *take_name(cursor *c)
{
    const size_t length = take_size(c);
    c->failed = c->failed || length > c->size - c->at;
    const char *const name = c->failed ? NULL : tsr_arena_dup(c->arena, c->data + c->at, length);
    c->failed = c->failed || name == NULL;
    c->at += c->failed ? 0 : length;
    return name;
}

static void take_entry(cursor *c, tsr_collected *e)
{
    *e = (tsr_collected){.module = take_name(c)};
    e->matrices = take_size(c);
    e->cols = take_size(c);
    c->failed = c->failed || (e->cols != 0 && e->matrices > c->size / e->cols);
    if (take_size(c) != 0)
        e->sum_x2 = take_array(c, e->matrices * e->cols, sizeof *e->sum_x2);
    e->least = take_array(c, e->matrices, sizeof *e->least);
    e->largest = take_array(c, e->matrices, sizeof *e->largest);
    e->tokens = take_array(c, e->matrices, sizeof *e->tokens);
    e->pooled = c->failed ? NULL : tsr_arena_alloc(c->arena, (e->matrices + 1) * sizeof *e->pooled);
    c->failed = c->failed || e->pooled == NULL;
}

bool tsr_collector_take_up(tsr_collector *collector, const char *data, size_t size)
{
    tsr_input_products *const p = collector->products;
    cursor c = {.data = data, .size = size, .arena = &collector->arena};
    for (size_t n = take_size(&c); n > 0 && !c.failed; n--) {
        c.failed = !tsr_grow(&collector->items, collector->count, &collector->capacity, sizeof *collector->items);
        if (!c.failed)
            take_entry(&c, &collector->items[collector->count]);
        collector->count += !c.failed;
    }
    for (size_t n = take_size(&c); p != NULL && n > 0 && !c.failed; n--) {
        c.arena = &p->arena;
        tsr_finished_products done = {.name = take_name(&c)};
        done.matrices = take_size(&c);
        done.cols = take_size(&c);
        done.offset = take_size(&c);
        c.failed = c.failed || !tsr_grow(&p->done, p->count, &p->capacity, sizeof *p->done);
        if (!c.failed)
            p->done[p->count++] = done;
    }
    const size_t bytes = take_size(&c);
    const size_t skipped = take_size(&c);
    if (p != NULL) {
        p->bytes = bytes;
        p->skipped = skipped;
    }
    return !c.failed && c.at == size;
}
