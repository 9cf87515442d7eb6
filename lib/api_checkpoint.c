/* Opens checkpoints and lists their files, tensors and weights. */
#include "lib/api.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

tessera_checkpoint *tsr_checkpoint_new(void)
{
    tessera_checkpoint *const c = calloc(1, sizeof *c);
    if (c != NULL)
        c->memory.fd = -1;
    return c;
}

void tessera_close(tessera_checkpoint *c)
{
    if (c == NULL)
        return;
    tsr_weights_free(&c->weights);
    tsr_checkpoint_close(c->opened);
    tsr_checkpoint_unsee(&c->seen);
    if (c->memory.map != NULL)
        munmap(c->memory.map, c->memory.size);
    if (c->memory.fd >= 0)
        close(c->memory.fd);
    tsr_arena_free(&c->arena);
    free(c);
}

static tsr_status open_path(tessera_checkpoint *c, const char *path, const char *const *words, tsr_err *err)
{
    const char *block_text = NULL;
    tsr_list ignore = {.count = 0};
    tsr_block block;
    uint64_t given;
    const tsr_option options[] = {{"--source-block", TSR_OPT_TEXT, &block_text, "RxC", NULL},
                                  {"--ignore-file", TSR_OPT_LIST, &ignore, "GLOB", NULL},
                                  {0}};
    if (c == NULL)
        return tsr_out_of_memory(err, path);
    TSR_TRY(tsr_words_parse(words, options, &given, err));
    TSR_TRY(tsr_parse_block("--source-block", block_text, &block, err));
    TSR_TRY(tsr_checkpoint_open(&c->opened, path, ignore.items, ignore.count, err));
    c->of = c->opened;
    return tsr_weights_pair(&c->weights, c->of, block, err);
}

tessera_status tessera_open(tessera_checkpoint **checkpoint, const char *path, const char *const *options,
                            tessera_error *error)
{
    tsr_call call;
    tsr_call_begin(&call);
    tessera_checkpoint *c = tsr_checkpoint_new();
    const tsr_status status = open_path(c, path, options, &call.err);
    if (status != TSR_OK) {
        tessera_close(c);
        c = NULL;
    }
    *checkpoint = c;
    return tsr_call_end(&call, status, error);
}

/* ---- describing ---- */

size_t tessera_count(const tessera_checkpoint *c)
{
    return c->weights.count;
}

static tessera_stored stored(const tessera_checkpoint *c, const tsr_tensor *t, const char *role)
{
    const tsr_file *const file = &c->of->files[t->file];
    const bool in_file = c->opened != NULL && file->archive == NULL;
    tessera_stored s = {.role = role,
                        .name = t->name,
                        .dtype = tsr_dtype_name((tsr_dtype)t->dtype),
                        .rank = t->rank,
                        .bytes = t->bytes,
                        .file = in_file ? file->path : NULL,
                        .offset = t->offset,
                        .data = c->opened == NULL ? c->memory.map + t->offset : NULL};
    memcpy(s.shape, t->shape, t->rank * sizeof *t->shape);
    return s;
}

static tsr_status no_index(const tessera_checkpoint *c, size_t index, tsr_err *err)
{
    return tsr_fail(err, TSR_E_USAGE, "%s: no weight %zu: it has %zu", c->of->path, index, c->weights.count);
}

tessera_status tessera_weight_at(const tessera_checkpoint *c, size_t index, tessera_weight *weight,
                                 tessera_error *error)
{
    tsr_call call;
    tsr_call_begin(&call);
    if (index >= c->weights.count)
        return tsr_call_end(&call, no_index(c, index, &call.err), error);
    const tsr_weight *const w = &c->weights.items[index];
    const tsr_tensor *const values = w->values;
    const tsr_tensor *companions[TSR_MAX_COMPANIONS];
    const char *roles[TSR_MAX_COMPANIONS];
    _Static_assert(TSR_MAX_COMPANIONS + 1 == TESSERA_MAX_STORED, "the codes, and all that may belong to them");
    *weight = (tessera_weight){.name = values->name,
                               .format = w->kind == NULL ? "plain" : w->kind->name,
                               .rank = values->rank,
                               .bits = w->kind == NULL ? tsr_dtype_bits((tsr_dtype)w->data->dtype) : w->bits,
                               .block_rows = w->block.rows,
                               .block_cols = w->block.cols};
    memcpy(weight->shape, values->shape, values->rank * sizeof *values->shape);
    weight->stored[weight->n_stored++] = stored(c, w->data, w->kind == NULL ? "plain" : "codes");
    const size_t n = tsr_weight_companions(w, companions, roles);
    for (size_t i = 0; i < n; i++)
        weight->stored[weight->n_stored++] = stored(c, companions[i], roles[i]);
    return tsr_call_end(&call, TSR_OK, error);
}

tessera_status tessera_find(const tessera_checkpoint *c, const char *name, size_t *index, tessera_error *error)
{
    tsr_call call;
    tsr_call_begin(&call);
    const tsr_weight *const w = tsr_weights_find(&c->weights, c->of, name);
    tsr_status status = TSR_OK;
    if (w != NULL)
        *index = (size_t)(w - c->weights.items);
    else
        status = tsr_fail(&call.err, TSR_E_USAGE, "%s: no weight '%s'", c->of->path, name);
    return tsr_call_end(&call, status, error);
}

static tsr_status read_stored(const tessera_checkpoint *c, const char *name, uint64_t offset, void *out, size_t size,
                              tsr_err *err)
{
    const tsr_tensor *const t = tsr_checkpoint_find(c->of, name);
    if (t == NULL)
        return tsr_fail(err, TSR_E_USAGE, "%s: no tensor '%s'", c->of->path, name);
    if (offset > t->bytes || size > t->bytes - offset)
        return tsr_fail(err, TSR_E_USAGE, "%s: '%s' has %llu bytes, so %zu bytes from offset %llu are outside it",
                        c->of->path, name, U64(t->bytes), size, U64(offset));
    return tsr_checkpoint_read(c->of, t, offset, out, size, err);
}

tessera_status tessera_read_stored(const tessera_checkpoint *c, const char *name, uint64_t offset, void *out,
                                   size_t size, tessera_error *error)
{
    tsr_call call;
    tsr_call_begin(&call);
    return tsr_call_end(&call, read_stored(c, name, offset, out, size, &call.err), error);
}
