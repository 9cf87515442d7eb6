/* Adds entries to the table of importance, and finds the entry of a weight. */
#include "formats/importance/importance.h"

#include "common/grow.h"
#include "formats/importance/imatrix_names.h"
#include "formats/names/coding.h"
#include "formats/names/shared_input.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static float value_at(const tsr_importance_entry *e, uint64_t i)
{
    float x;
    memcpy(&x, e->values + i * sizeof x, sizeof x);
    return x;
}

/* Checks the values of an entry, and computes its means. */
static tsr_status check_values(const tsr_importance *m, const tsr_importance_entry *e, tsr_err *err)
{
    for (uint64_t k = 0; k < e->matrices; k++) {
        double sum = 0;
        for (uint64_t i = k * e->cols; i < (k + 1) * e->cols; i++) {
            const float x = value_at(e, i);
            if (!(x >= 0) || isinf(x))
                return tsr_fail(err, TSR_E_FORMAT,
                                "%s: '%s': value %llu is %g: a mean square is finite and not negative", m->path,
                                e->name, U64(i), (double)x);
            sum += (double)x;
        }
        const float inverse = (float)((double)e->cols / sum);
        e->inverse_mean[k] = sum > 0 && isfinite(inverse) ? inverse : 0;
    }
    return TSR_OK;
}

tsr_status tsr_importance_add(tsr_importance *m, const tsr_importance_entry *entry, tsr_err *err)
{
    if (!tsr_grow(&m->items, m->count, &m->capacity, sizeof *m->items))
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", m->path);
    tsr_importance_entry *const e = &m->items[m->count];
    *e = *entry;
    e->inverse_mean = tsr_arena_alloc(&m->arena, (e->matrices + 1) * sizeof *e->inverse_mean);
    if (e->name == NULL || e->inverse_mean == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", m->path);
    m->count++;
    return check_values(m, e, err);
}

void tsr_importance_free(tsr_importance *importance)
{
    if (importance->map != NULL)
        (void)munmap((void *)(uintptr_t)importance->map, importance->map_size);
    free(importance->items);
    free(importance->products);
    tsr_arena_free(&importance->arena);
    *importance = (tsr_importance){0};
}

static const tsr_importance_entry *find_name(const tsr_importance *m, const char *name, size_t length)
{
    return tsr_find_module(m->items, m->count, sizeof *m->items, name, length);
}

/* Finds the products for a weight of `matrices` matrices. */
static tsr_status find_products(const tsr_importance *m, const tsr_tensor *weight, uint64_t matrices,
                                tsr_column_importance *found, tsr_err *err)
{
    const uint64_t cols = weight->shape[weight->rank - 1];
    tsr_shared_input input;
    if (!m->gptq || !tsr_shared_input_of(weight->name, tsr_module_length(weight->name), &input))
        return TSR_OK;
    const tsr_input_matrix *const p =
        tsr_find_module(m->products, m->n_products, sizeof *m->products, input.name, strlen(input.name));
    if (p != NULL && (p->cols != cols || (p->matrices != matrices && !(input.common && p->matrices == 1))))
        return tsr_fail(err, TSR_E_MISMATCH,
                        "%s: '%s." TSR_PRODUCTS_MEMBER "' has %llu matrices of %llu channels, which does not fit '%s': "
                        "the file belongs to another model",
                        m->path, p->name, U64(p->matrices), U64(p->cols), weight->name);
    found->products = p;
    return TSR_OK;
}

const unsigned char *tsr_importance_products(const tsr_column_importance *columns, uint64_t matrix)
{
    const tsr_input_matrix *const p = columns->products;
    if (p == NULL)
        return NULL;
    const unsigned char *const values = p->values + (p->matrices == 1 ? 0 : matrix) * p->cols * p->cols * sizeof(float);
    for (uint64_t i = 0; i < p->cols; i++) {
        float x;
        memcpy(&x, values + i * (p->cols + 1) * sizeof x, sizeof x);
        if (x != 0)
            return values;
    }
    return NULL;
}

tsr_status tsr_importance_find(const tsr_importance *m, const tsr_tensor *weight, tsr_column_importance *found,
                               tsr_err *err)
{
    const uint64_t cols = weight->shape[weight->rank - 1], matrices = weight->rank == 3 ? weight->shape[0] : 1;
    tsr_imatrix_name name = {.expert = false};
    const tsr_importance_entry *e = NULL;
    for (size_t i = 0; m->gguf && e == NULL && tsr_imatrix_name_of(weight->name, i, &name); i++)
        e = find_name(m, name.text, strlen(name.text));
    if (!m->gguf)
        e = find_name(m, weight->name, tsr_module_length(weight->name));
    *found = (tsr_column_importance){.entry = e, .matrix = name.expert ? name.matrix : 0};
    TSR_TRY(find_products(m, weight, matrices, found, err));
    if (e == NULL)
        return TSR_OK;
    if (e->cols != cols)
        return tsr_fail(err, TSR_E_MISMATCH,
                        "%s: '%s' has %llu channels, but '%s' has %llu columns: the file belongs to another model",
                        m->path, e->name, U64(e->cols), weight->name, U64(cols));
    if (name.expert ? name.matrix >= e->matrices : e->matrices != matrices)
        return tsr_fail(
            err, TSR_E_MISMATCH,
            "%s: '%s' has data of %llu matrices, which does not fit '%s': the file belongs to another model", m->path,
            e->name, U64(e->matrices), weight->name);
    return TSR_OK;
}

bool tsr_importance_has(const tsr_column_importance *columns, const tsr_tensor *weight)
{
    const uint64_t matrices = weight->rank == 3 ? weight->shape[0] : 1;
    for (uint64_t i = 0; columns->entry != NULL && i < matrices; i++) {
        if (columns->entry->inverse_mean[columns->matrix + i] != 0)
            return true;
    }
    return false;
}

bool tsr_importance_of(const tsr_column_importance *columns, uint64_t matrix, uint64_t first, uint64_t n, float *out)
{
    const tsr_importance_entry *const e = columns->entry;
    if (e == NULL || e->inverse_mean[columns->matrix + matrix] == 0)
        return false;
    const float inverse = e->inverse_mean[columns->matrix + matrix];
    for (uint64_t i = 0; i < n; i++)
        out[i] = value_at(e, (columns->matrix + matrix) * e->cols + first + i) * inverse;
    return true;
}
