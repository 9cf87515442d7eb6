/* Opens arrays as a checkpoint: one anonymous file that is mapped. */
#include "lib/api.h"

#include "common/checked.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGNED = 64 };

tsr_status tsr_memory_make(tsr_memory *m, size_t size, tsr_err *err)
{
    m->size = size + 1; /* an empty file cannot be mapped */
    m->fd = memfd_create("tessera", MFD_CLOEXEC);
    if (m->fd < 0 || ftruncate(m->fd, (off_t)m->size) != 0)
        return tsr_fail_errno(err, "memory for %zu bytes of arrays", size);
    m->map = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    if (m->map == MAP_FAILED) {
        m->map = NULL;
        return tsr_fail_errno(err, "memory for %zu bytes of arrays", size);
    }
    m->file = (tsr_file){.name = "arrays", .path = "arrays", .size = m->size, .fd = m->fd};
    m->base = (tsr_checkpoint){.path = "arrays", .files = &m->file, .n_files = 1};
    return TSR_OK;
}

tsr_status tsr_memory_see(tessera_checkpoint *c, tsr_tensors *tensors, const char *config, tsr_block block,
                          tsr_err *err)
{
    const size_t size = config == NULL ? 0 : strlen(config);
    TSR_TRY(tsr_checkpoint_see(&c->seen, &c->memory.base, tensors, config, size, NULL, err));
    c->of = &c->seen;
    return tsr_weights_pair(&c->weights, c->of, block, err);
}

/* Fills *t from an array, except its offset. */
static tsr_status describe(const tessera_array *a, tsr_arena *arena, tsr_tensor *t, tsr_err *err)
{
    const char *const name = a->name == NULL ? "array.weight" : a->name;
    tsr_dtype dtype;
    uint64_t bits = 0;
    if (a->dtype == NULL || !tsr_dtype_from_name(a->dtype, strlen(a->dtype), &dtype))
        return tsr_fail(err, TSR_E_USAGE, "'%s': '%s' is not a dtype of safetensors", name,
                        a->dtype == NULL ? "" : a->dtype);
    if (a->rank > TSR_MAX_RANK)
        return tsr_fail(err, TSR_E_USAGE, "'%s' has %llu dimensions; at most %d are supported", name, U64(a->rank),
                        TSR_MAX_RANK);
    *t = (tsr_tensor){.name = tsr_arena_dup(arena, name, strlen(name)),
                      .rank = (uint8_t)a->rank,
                      .dtype = (uint8_t)dtype,
                      .bytes = a->bytes};
    if (t->name == NULL)
        return tsr_out_of_memory(err, name);
    bool fits = true;
    bits = tsr_dtype_bits(dtype);
    for (unsigned i = 0; i < t->rank; i++) {
        t->shape[i] = a->shape[i];
        fits = fits && tsr_mul_u64(bits, a->shape[i], &bits);
    }
    if (!fits || bits % 8 != 0 || bits / 8 != a->bytes || (a->bytes > 0 && a->data == NULL))
        return tsr_fail(err, TSR_E_USAGE, "'%s': its data is not %llu bytes, the size of its dtype and shape", name,
                        U64(a->bytes));
    return TSR_OK;
}

static tsr_status take(tessera_checkpoint *c, const tessera_array *arrays, size_t n, tsr_tensors *tensors, tsr_err *err)
{
    uint64_t size = 0;
    for (size_t i = 0; i < n; i++) {
        tsr_tensor t;
        TSR_TRY(describe(&arrays[i], &c->arena, &t, err));
        t.offset = size;
        if (!tsr_add_u64(size, t.bytes, &size) || size > SIZE_MAX / 2)
            return tsr_out_of_memory(err, "for arrays");
        size = tsr_round_up(size, ALIGNED);
        TSR_TRY(tsr_tensors_add(tensors, &t, err));
    }
    TSR_TRY(tsr_memory_make(&c->memory, size, err));
    for (size_t i = 0; i < n; i++) {
        if (arrays[i].bytes > 0)
            memcpy(c->memory.map + tensors->items[i].offset, arrays[i].data, arrays[i].bytes);
    }
    return TSR_OK;
}

tsr_status tsr_memory_take(tessera_checkpoint *c, const tessera_array *arrays, size_t n, const char *config,
                           tsr_block block, tsr_err *err)
{
    tsr_tensors tensors = {0};
    if (c == NULL)
        return tsr_out_of_memory(err, "for arrays");
    const char *const text = config == NULL ? NULL : tsr_arena_dup(&c->arena, config, strlen(config));
    tsr_status status = config != NULL && text == NULL ? tsr_out_of_memory(err, "for a configuration") : TSR_OK;
    if (status == TSR_OK)
        status = take(c, arrays, n, &tensors, err);
    if (status == TSR_OK)
        status = tsr_memory_see(c, &tensors, text, block, err);
    tsr_tensors_free(&tensors);
    return status;
}

static tsr_status open_arrays(tessera_checkpoint *c, const tessera_array *arrays, size_t n, const char *config,
                              const char *const *words, tsr_err *err)
{
    const char *text = NULL;
    tsr_block block;
    uint64_t given;
    const tsr_option options[] = {{"--source-block", TSR_OPT_TEXT, &text, "RxC", NULL}, {0}};
    TSR_TRY(tsr_words_parse(words, options, &given, err));
    TSR_TRY(tsr_parse_block("--source-block", text, &block, err));
    return tsr_memory_take(c, arrays, n, config, block, err);
}

tessera_status tessera_open_arrays(tessera_checkpoint **checkpoint, const tessera_array *arrays, size_t n,
                                   const char *config, const char *const *options, tessera_error *error)
{
    tsr_call call;
    tsr_call_begin(&call);
    tessera_checkpoint *c = tsr_checkpoint_new();
    const tsr_status status = open_arrays(c, arrays, n, config, options, &call.err);
    if (status != TSR_OK) {
        tessera_close(c);
        c = NULL;
    }
    *checkpoint = c;
    return tsr_call_end(&call, status, error);
}
