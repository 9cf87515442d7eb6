/* Small safetensors files, whole in memory. */
#include "tests/peers/golden/tensor_set.h"

#include "common/file.h"
#include "common/float_bits.h"

#include <string.h>

static const uint64_t kMostBytes = 1 << 28; /* size limit of a file */

static tsr_status no_room(tsr_err *err)
{
    return tsr_fail(err, TSR_E_NOMEM, "no memory, or more than %d tensors", MOST_TENSORS);
}

static tsr_status take(tensor_set *set, const tsr_tensor *t, const char *data, tsr_err *err)
{
    void *const bytes = tsr_arena_alloc(set->arena, t->bytes + 1);
    if (bytes == NULL || set->count == MOST_TENSORS)
        return no_room(err);
    if (data != NULL)
        memcpy(bytes, data, t->bytes);
    set->items[set->count++] = (set_tensor){*t, bytes};
    return TSR_OK;
}

tsr_status read_set(const char *dir, const char *file, tensor_set *set, tsr_err *err)
{
    if (file == NULL)
        return tsr_fail(err, TSR_E_FORMAT, "the manifest names no file for it");
    const char *const path = tsr_arena_printf(set->arena, "%s/%s", dir, file);
    const char *data;
    size_t size;
    uint64_t length;
    if (path == NULL)
        return no_room(err);
    TSR_TRY(tsr_read_file(path, kMostBytes, set->arena, &data, &size, err));
    memcpy(&length, data, size < sizeof length ? size : sizeof length);
    if (size < sizeof length || length > size - sizeof length)
        return tsr_fail(err, TSR_E_FORMAT, "%s is no safetensors file", path);
    tsr_tensors tensors = {0};
    tsr_status status = tsr_safetensors_parse(path, data + sizeof length, length, size - sizeof length - length, 0,
                                              set->arena, &tensors, err);
    for (size_t i = 0; i < tensors.count && status == TSR_OK; i++)
        status = take(set, &tensors.items[i], data + tensors.items[i].offset, err);
    tsr_tensors_free(&tensors);
    return status;
}

bool ends_in(const char *name, const char *suffix, size_t *length)
{
    const size_t all = strlen(name), tail = strlen(suffix);
    if (all < tail || strcmp(name + all - tail, suffix) != 0)
        return false;
    if (length != NULL)
        *length = all - tail;
    return true;
}

bool has_tensor(const tensor_set *set, const char *suffix)
{
    size_t i = 0;
    while (i < set->count && !ends_in(set->items[i].t.name, suffix, NULL))
        i++;
    return i < set->count;
}

tsr_status find_tensor(const tensor_set *set, const char *suffix, tsr_dtype dtype, const set_tensor **tensor,
                       tsr_err *err)
{
    TSR_TRY(find_any(set, suffix, tensor, err));
    return (*tensor)->t.dtype == dtype
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT, "'%s' is not %s", (*tensor)->t.name, tsr_dtype_name(dtype));
}

tsr_status find_any(const tensor_set *set, const char *suffix, const set_tensor **tensor, tsr_err *err)
{
    for (size_t i = 0; i < set->count; i++) {
        *tensor = &set->items[i];
        if (ends_in((*tensor)->t.name, suffix, NULL))
            return TSR_OK;
    }
    return tsr_fail(err, TSR_E_FORMAT, "there is no tensor whose name ends in '%s'", suffix);
}

tsr_status add_tensor(tensor_set *set, const char *module, size_t length, const char *suffix, tsr_dtype dtype,
                      unsigned rank, const uint64_t *shape, set_tensor **tensor, tsr_err *err)
{
    tsr_tensor t = {.dtype = (uint8_t)dtype, .rank = (uint8_t)rank};
    t.name = tsr_arena_printf(set->arena, "%.*s%s", (int)length, module, suffix);
    t.bytes = tsr_dtype_bytes(dtype);
    for (unsigned i = 0; i < rank; i++) {
        t.shape[i] = shape[i];
        t.bytes *= shape[i];
    }
    if (t.name == NULL)
        return no_room(err);
    TSR_TRY(take(set, &t, NULL, err));
    *tensor = &set->items[set->count - 1];
    return TSR_OK;
}

static bool same_shape(const tsr_tensor *a, const tsr_tensor *b, bool scalar_shape_free)
{
    if (scalar_shape_free && tsr_tensor_elements(a) == 1 && tsr_tensor_elements(b) == 1)
        return true;
    return a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0;
}

/* Returns the value of element i. */
static bool same_value(const set_tensor *a, const set_tensor *b, size_t i, set_rules rules)
{
    const size_t width = tsr_dtype_bytes((tsr_dtype)a->t.dtype);
    uint32_t x = 0, y = 0;
    if (memcmp((const char *)a->bytes + i * width, (const char *)b->bytes + i * width, width) == 0)
        return true;
    if (width > sizeof x)
        return false;
    memcpy(&x, (const char *)a->bytes + i * width, width);
    memcpy(&y, (const char *)b->bytes + i * width, width);
    if (a->t.dtype == TSR_BF16 && rules.zero_sign_free)
        return ((x | y) & 0x7FFF) == 0;
    const uint32_t nan = TSR_FP32_INF_BITS + 1;
    return a->t.dtype == TSR_F32 && (x & TSR_FP32_ABS_MASK) >= nan && (y & TSR_FP32_ABS_MASK) >= nan;
}

static tsr_status compare_tensors(const set_tensor *a, const set_tensor *b, set_rules rules, tsr_err *err)
{
    char got[192], want[192];
    const size_t width = tsr_dtype_bytes((tsr_dtype)a->t.dtype);
    if (a->t.dtype != b->t.dtype || !same_shape(&a->t, &b->t, rules.scalar_shape_free))
        return tsr_fail(err, TSR_E_MISMATCH, "'%s' is %s %s, expected %s %s", a->t.name,
                        tsr_dtype_name((tsr_dtype)a->t.dtype), tsr_shape_text(&a->t, got, sizeof got),
                        tsr_dtype_name((tsr_dtype)b->t.dtype), tsr_shape_text(&b->t, want, sizeof want));
    for (size_t i = 0; i < tsr_tensor_elements(&a->t); i++) {
        unsigned long long x = 0, y = 0;
        memcpy(&x, (const char *)a->bytes + i * width, width);
        memcpy(&y, (const char *)b->bytes + i * width, width);
        if (!same_value(a, b, i, rules))
            return tsr_fail(err, TSR_E_MISMATCH, "'%s': element %zu is 0x%0*llX, expected 0x%0*llX", a->t.name, i,
                            (int)width * 2, x, (int)width * 2, y);
    }
    return TSR_OK;
}

tsr_status compare_sets(const tensor_set *got, const tensor_set *expected, set_rules rules, tsr_err *err)
{
    for (size_t i = 0; i < expected->count; i++) {
        const set_tensor *const b = &expected->items[i];
        size_t j = 0;
        while (j < got->count && strcmp(got->items[j].t.name, b->t.name) != 0)
            j++;
        if (j == got->count)
            return tsr_fail(err, TSR_E_MISMATCH, "'%s' was not made", b->t.name);
        TSR_TRY(compare_tensors(&got->items[j], b, rules, err));
    }
    return got->count == expected->count
               ? TSR_OK
               : tsr_fail(err, TSR_E_MISMATCH, "%zu tensors were made, %zu expected", got->count, expected->count);
}
