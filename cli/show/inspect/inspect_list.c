/* Lists tensors of a checkpoint by name, with the weights that they are parts of. */
#include "cli/show/inspect/inspect_list.h"

#include "cli/io/globs.h"
#include "cli/io/output.h"
#include "cli/show/inspect/inspect_print.h"
#include "common/glob.h"
#include "common/text.h"
#include "formats/json/json_write.h"

#include <stdlib.h>
#include <string.h>

static const char *name_of(const void *tensors, size_t i)
{
    return ((const tsr_tensors *)tensors)->items[i].name;
}

/* Marks the tensors that quantized weights consist of. rows[i] belongs to tensor i of the checkpoint. */
static void mark(const tsr_checkpoint *c, const tsr_weights *weights, tsr_listed *rows)
{
    const tsr_tensor *companions[TSR_MAX_COMPANIONS];
    const char *roles[TSR_MAX_COMPANIONS];
    for (size_t i = 0; i < weights->count; i++) {
        const tsr_weight *const w = &weights->items[i];
        if (w->scale == NULL)
            continue;
        tsr_listed *const codes = &rows[w->data - c->tensors.items];
        codes->weight = w;
        codes->role = "codes";
        const size_t n = tsr_weight_companions(w, companions, roles);
        for (size_t k = 0; k < n; k++) {
            tsr_listed *const row = &rows[companions[k] - c->tensors.items];
            if (row->weight != NULL) /* shared by several weights: it belongs to the first */
                continue;
            row->weight = w;
            row->role = roles[k];
        }
    }
}

tsr_status tsr_tensor_list_find(tsr_tensor_list *list, const tsr_checkpoint *c, const tsr_weights *weights,
                                const char *const *globs, size_t n_globs, tsr_err *err)
{
    const size_t n = c->tensors.count;
    TSR_TRY(tsr_check_tensor_globs(globs, n_globs, name_of, &c->tensors, n, err));
    list->rows = calloc(n + 1, sizeof *list->rows);
    if (list->rows == NULL)
        return tsr_out_of_memory(err, NULL);
    mark(c, weights, list->rows);
    for (size_t i = 0; i < n; i++) {
        const tsr_tensor *const t = &c->tensors.items[i];
        if (tsr_glob_find(globs, n_globs, t->name) == NULL)
            continue;
        list->rows[list->count] = list->rows[i];
        list->rows[list->count++].tensor = t;
        list->bytes += t->bytes;
    }
    return TSR_OK;
}

void tsr_tensor_list_print(const tsr_tensor_list *list, const tsr_checkpoint *c)
{
    char shape[96], bytes[32];
    size_t width = 0;
    for (size_t i = 0; i < list->count; i++)
        width = strlen(list->rows[i].tensor->name) > width ? strlen(list->rows[i].tensor->name) : width;
    for (size_t i = 0; i < list->count; i++) {
        const tsr_listed *const row = &list->rows[i];
        const tsr_tensor *const t = row->tensor;
        tsr_print("%-*s  %-8s %-14s %10s  %s", (int)width, t->name, tsr_dtype_name((tsr_dtype)t->dtype),
                  tsr_shape_text(t, shape, sizeof shape), tsr_bytes_text((double)t->bytes, bytes),
                  c->files[t->file].name);
        if (row->role != NULL)
            tsr_print("  %s of %s", row->role, row->weight->kind->name);
        tsr_print("\n");
    }
    tsr_print("%zu of %zu tensors, %s\n", list->count, c->tensors.count, tsr_bytes_text((double)list->bytes, bytes));
}

void tsr_tensor_list_json(const tsr_tensor_list *list, const tsr_checkpoint *c, tsr_text *t)
{
    tsr_json_member_u64(t, "of", c->tensors.count);
    tsr_json_member_u64(t, "bytes", list->bytes);
    tsr_json_member_array(t, "tensors", false);
    for (size_t i = 0; i < list->count; i++) {
        const tsr_listed *const row = &list->rows[i];
        tsr_json_begin_object(t, true);
        tsr_json_place(t, c, row->tensor);
        tsr_json_member_string(t, "kind", row->weight == NULL ? NULL : row->weight->kind->name);
        tsr_json_member_string(t, "role", row->role);
        tsr_json_member_string(t, "weight", row->weight == NULL ? NULL : row->weight->data->name);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}
