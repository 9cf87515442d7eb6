/* Reads importance from GGUF and safetensors into one table. */
#include "formats/importance/importance.h"

#include "common/grow.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/importance/gguf.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static const char kSums[] = ".in_sum2", kCounts[] = ".counts", kWeight[] = ".weight";

static tsr_status out_of_memory(const tsr_importance *m, tsr_err *err)
{
    return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", m->path);
}

/* ---- the table ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const tsr_importance_entry *)a)->name, ((const tsr_importance_entry *)b)->name);
}

static int by_products_name(const void *a, const void *b)
{
    return strcmp(((const tsr_input_matrix *)a)->name, ((const tsr_input_matrix *)b)->name);
}

static tsr_status finish(tsr_importance *m, tsr_err *err)
{
    if (m->count == 0)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: has no importance: expected NAME.in_sum2 (llama.cpp), or MODULE." TSR_IMPORTANCE_MEMBER,
                        m->path);
    qsort(m->items, m->count, sizeof *m->items, by_name);
    if (m->n_products > 0)
        qsort(m->products, m->n_products, sizeof *m->products, by_products_name);
    XXH3_state_t *const hash = XXH3_createState();
    if (hash == NULL)
        return out_of_memory(m, err);
    (void)XXH3_64bits_reset(hash);
    for (size_t i = 0; i < m->count; i++) {
        const tsr_importance_entry *const e = &m->items[i];
        if (i > 0 && by_name(e - 1, e) == 0) {
            (void)XXH3_freeState(hash);
            return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' is given twice", m->path, e->name);
        }
        (void)XXH3_64bits_update(hash, e->name, strlen(e->name) + 1);
        (void)XXH3_64bits_update(hash, &e->cols, sizeof e->cols);
        (void)XXH3_64bits_update(hash, e->values, (size_t)(e->matrices * e->cols) * sizeof(float));
    }
    m->hash = XXH3_64bits_digest(hash);
    (void)XXH3_freeState(hash);
    return TSR_OK;
}

/* ---- GGUF ---- */

/* Adds the entry of NAME.weight.in_sum2 as "NAME". Sums need not be divided by counts, because a weighted error is
 * compared with errors of the same weights only. */
static tsr_status add_sums(tsr_importance *m, const tsr_gguf_tensor *t, tsr_err *err)
{
    size_t length = strlen(t->name) - strlen(kSums);
    if (length >= strlen(kWeight) && strncmp(t->name + length - strlen(kWeight), kWeight, strlen(kWeight)) == 0)
        length -= strlen(kWeight);
    if (t->type != TSR_GGUF_F32)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' is not F32, as llama.cpp writes it", m->path, t->name);
    return tsr_importance_add(m,
                              &(tsr_importance_entry){.name = tsr_arena_dup(&m->arena, t->name, length),
                                                      .matrices = t->size[1] * t->size[2] * t->size[3],
                                                      .cols = t->size[0],
                                                      .values = m->map + t->offset},
                              err);
}

static tsr_status read_gguf(tsr_importance *m, tsr_err *err)
{
    tsr_gguf gguf;
    TSR_TRY(tsr_gguf_read(&gguf, m->path, m->map, m->map_size, &m->arena, err));
    m->gguf = true;
    if (strcmp(gguf.type, "imatrix") != 0)
        return tsr_fail(
            err, TSR_E_UNSUPPORTED,
            "%s: a GGUF file of type '%s', not an importance matrix (general.type 'imatrix'); llama-imatrix "
            "writes one",
            m->path, gguf.type[0] == '\0' ? "model" : gguf.type);
    for (size_t i = 0; i < gguf.count; i++) {
        const tsr_gguf_tensor *const t = &gguf.tensors[i];
        if (tsr_ends_with(t->name, kSums))
            TSR_TRY(add_sums(m, t, err));
        else if (!tsr_ends_with(t->name, kCounts))
            return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: unknown tensor '%s' in an importance matrix", m->path,
                            t->name);
    }
    return TSR_OK;
}

/* ---- safetensors ---- */

static tsr_status add_tensor(tsr_importance *m, const tsr_tensor *t, size_t length, tsr_err *err)
{
    if (t->dtype != TSR_F32 || t->rank < 1 || t->rank > 2)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' is not F32 of shape [channels] or [experts, channels]",
                        m->path, t->name);
    if (t->offset > m->map_size || t->bytes > m->map_size - t->offset)
        return tsr_fail(err, TSR_E_IO, "%s: the file changed while it was read", m->path);
    return tsr_importance_add(m,
                              &(tsr_importance_entry){.name = tsr_arena_dup(&m->arena, t->name, length),
                                                      .matrices = t->rank == 2 ? t->shape[0] : 1,
                                                      .cols = t->shape[t->rank - 1],
                                                      .values = m->map + t->offset},
                              err);
}

static tsr_status add_products(tsr_importance *m, const tsr_tensor *t, size_t length, tsr_err *err)
{
    const unsigned last = t->rank - 1u;
    if (t->dtype != TSR_F32 || t->rank < 2 || t->rank > 3 || t->shape[last] == 0 ||
        t->shape[last] != t->shape[last - 1])
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is not F32 of shape [channels, channels] or [experts, channels, channels]", m->path,
                        t->name);
    if (t->offset > m->map_size || t->bytes > m->map_size - t->offset)
        return tsr_fail(err, TSR_E_IO, "%s: the file changed while it was read", m->path);
    const char *const name = tsr_arena_dup(&m->arena, t->name, length);
    if (name == NULL || !tsr_grow(&m->products, m->n_products, &m->products_capacity, sizeof *m->products))
        return out_of_memory(m, err);
    m->products[m->n_products++] = (tsr_input_matrix){
        .name = name, .matrices = t->rank == 3 ? t->shape[0] : 1, .cols = t->shape[last], .values = m->map + t->offset};
    return TSR_OK;
}

static tsr_status read_safetensors(tsr_importance *m, tsr_err *err)
{
    static const char kEnding[] = "." TSR_IMPORTANCE_MEMBER, kProducts[] = "." TSR_PRODUCTS_MEMBER;
    tsr_checkpoint *c;
    TSR_TRY(tsr_checkpoint_open(&c, m->path, NULL, 0, err));
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < c->tensors.count && status == TSR_OK; i++) {
        const tsr_tensor *const t = &c->tensors.items[i];
        if (tsr_ends_with(t->name, kEnding))
            status = add_tensor(m, t, strlen(t->name) - strlen(kEnding), err);
        else if (tsr_ends_with(t->name, kProducts))
            status = add_products(m, t, strlen(t->name) - strlen(kProducts), err);
    }
    tsr_checkpoint_close(c);
    return status;
}

/* ---- all kinds ---- */

static tsr_status map_file(tsr_importance *m, tsr_err *err)
{
    int fd;
    uint64_t size;
    tsr_stamp stamp;
    TSR_TRY(tsr_open_input(m->path, &fd, &size, &stamp, err));
    void *const map = size == 0 ? MAP_FAILED : mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map != MAP_FAILED) {
        m->map = map;
        m->map_size = (size_t)size;
    }
    const tsr_status status = size == 0           ? tsr_fail(err, TSR_E_FORMAT, "%s: an empty file", m->path)
                              : map == MAP_FAILED ? tsr_fail_errno(err, "%s: cannot map it into memory", m->path)
                                                  : TSR_OK;
    (void)close(fd);
    return status;
}

static tsr_status read_any(tsr_importance *m, tsr_err *err)
{
    if (tsr_ends_with(m->path, ".json"))
        return tsr_importance_read_json(m, err);
    TSR_TRY(map_file(m, err));
    if (tsr_gguf_is(m->map, m->map_size))
        return read_gguf(m, err);
    if (tsr_ends_with(m->path, ".safetensors"))
        return read_safetensors(m, err);
    return tsr_fail(
        err, TSR_E_UNSUPPORTED,
        "%s: expected an importance matrix in GGUF, .safetensors or .json; llama-imatrix --in-file converts "
        "its older format to GGUF",
        m->path);
}

tsr_status tsr_importance_read(tsr_importance *importance, const char *path, tsr_err *err)
{
    *importance = (tsr_importance){.path = path};
    tsr_status status = read_any(importance, err);
    if (status == TSR_OK)
        status = finish(importance, err);
    if (status != TSR_OK)
        tsr_importance_free(importance);
    return status;
}
