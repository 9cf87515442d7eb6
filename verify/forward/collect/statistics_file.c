/* Writes collected statistics as safetensors. */
#include "verify/forward/collect/collector.h"

#include "common/file.h"
#include "common/grow.h"
#include "formats/checkpoint/safetensors.h"

#include <stdlib.h>

/* The tensors of the file and their bytes, in the same order. */
typedef struct content {
    tsr_tensor **tensors;
    size_t count, capacity;
    tsr_text data;
    tsr_arena arena;
    bool failed;
} content;

/* Adds a tensor without its data. */
static void declare(content *c, const char *module, const char *member, tsr_dtype dtype, unsigned rank,
                    const size_t *shape)
{
    tsr_tensor *const t = tsr_arena_alloc(&c->arena, sizeof *t);
    if (t == NULL || !tsr_grow(&c->tensors, c->count, &c->capacity, sizeof *c->tensors)) {
        c->failed = true;
        return;
    }
    *t = (tsr_tensor){
        .name = tsr_arena_printf(&c->arena, "%s.%s", module, member), .dtype = (uint8_t)dtype, .rank = (uint8_t)rank};
    t->bytes = tsr_dtype_bytes(dtype);
    for (unsigned i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        t->bytes *= shape[i];
    }
    c->failed = c->failed || t->name == NULL;
    c->tensors[c->count++] = t;
}

static void add(content *c, const tsr_collected *e, const char *member, tsr_dtype dtype, unsigned rank,
                const size_t *shape, const void *data)
{
    declare(c, e->module, member, dtype, rank, shape);
    if (!c->failed)
        tsr_text_append(&c->data, data, (size_t)c->tensors[c->count - 1]->bytes);
}

/* Adds the range of all matrices. */
static void add_range(content *c, const tsr_collected *e)
{
    const size_t one = 1;
    bool any = false;
    float least = 0, largest = 0;
    for (size_t i = 0; i < e->matrices; i++) {
        if (e->tokens[i] == 0 && !e->pooled[i])
            continue;
        const float low = (float)e->least[i], high = (float)e->largest[i];
        least = !any || low < least ? low : least;
        largest = !any || high > largest ? high : largest;
        any = true;
    }
    if (!any)
        return;
    add(c, e, "input_min", TSR_F32, 1, &one, &least);
    add(c, e, "input_max", TSR_F32, 1, &one, &largest);
}

static void add_means(content *c, const tsr_collected *e)
{
    const size_t shape[] = {e->matrices, e->cols};
    const bool stack = e->matrices > 1;
    float *const means = calloc(e->matrices * e->cols + 1, sizeof *means);
    bool known = false;
    if (means == NULL) {
        c->failed = true;
        return;
    }
    for (size_t i = 0; i < e->matrices * e->cols; i++) {
        const uint64_t tokens = e->tokens[i / e->cols];
        means[i] = (float)(e->sum_x2[i] / (tokens == 0 ? 1 : (double)tokens));
    }
    for (size_t i = 0; i < e->matrices; i++)
        known = known || e->tokens[i] > 0 || e->pooled[i];
    if (known)
        add(c, e, "input_mean_square", TSR_F32, stack ? 2 : 1, stack ? shape : shape + 1, means);
    add(c, e, "input_tokens", TSR_I64, 1, shape, e->tokens);
    free(means);
}

tsr_status tsr_collector_write(const tsr_collector *collector, const char *path, tsr_err *err)
{
    content c = {.count = 0};
    for (size_t i = 0; i < collector->count; i++) {
        add_range(&c, &collector->items[i]);
        if (collector->items[i].sum_x2 != NULL)
            add_means(&c, &collector->items[i]);
    }
    const tsr_input_products *const p = collector->products;
    for (size_t i = 0; p != NULL && i < p->count; i++) {
        const size_t shape[] = {p->done[i].matrices, p->done[i].cols, p->done[i].cols};
        const bool stack = p->done[i].matrices > 1;
        declare(&c, p->done[i].name, "input_products", TSR_F32, stack ? 3 : 2, stack ? shape : shape + 1);
    }
    tsr_text file = {0};
    if (!c.failed)
        tsr_safetensors_write_header(&file, c.tensors, c.count);
    tsr_text_append(&file, c.data.data == NULL ? "" : c.data.data, c.data.size);
    const tsr_file_end end = {.fd = p == NULL ? -1 : p->fd, .size = p == NULL ? 0 : p->bytes};
    const tsr_status status = c.failed || c.data.failed || file.failed
                                  ? tsr_out_of_memory(err, "for statistics of inputs")
                                  : tsr_write_long_file(path, file.data, file.size, &end, err);
    tsr_text_free(&file);
    tsr_text_free(&c.data);
    free(c.tensors);
    tsr_arena_free(&c.arena);
    return status;
}
