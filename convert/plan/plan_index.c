/* Writes the index of a model in several files, which maps tensors to files. */
#include "convert/plan/plan.h"

#include "formats/json/json_write.h"

#include <stdlib.h>
#include <string.h>

/* Returns true for a safetensors file directly in `folder`. */
static bool is_model_file(const tsr_out_file *f, const char *folder)
{
    const size_t n = strlen(folder);
    return !f->raw && strncmp(f->name, folder, n) == 0 && strchr(f->name + n, '/') == NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(tsr_tensor *const *)a)->name, (*(tsr_tensor *const *)b)->name);
}

static void write_index(tsr_text *t, const tsr_plan *plan, tsr_tensor *const *all, size_t n, size_t folder_size)
{
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += all[i]->bytes;
    tsr_json_begin_object(t, false);
    tsr_json_member_object(t, "metadata", false);
    tsr_json_member_u64(t, "total_size", total);
    tsr_json_end_object(t);
    tsr_json_member_object(t, "weight_map", false);
    for (size_t i = 0; i < n; i++) {
        tsr_json_member_string(t, all[i]->name, plan->files[all[i]->file].name + folder_size);
    }
    tsr_json_end_object(t);
    tsr_json_end_document(t);
}

tsr_status tsr_plan_index(tsr_plan *plan, const char *folder, bool always, tsr_err *err)
{
    size_t n = 0, models = 0;
    for (size_t i = 0; i < plan->n_files; i++) {
        const bool model = is_model_file(&plan->files[i], folder);
        models += model;
        n += model ? plan->files[i].n_tensors : 0;
    }
    if (models < 2 && !always)
        return TSR_OK;
    tsr_tensor **const all = malloc((n + 1) * sizeof *all);
    if (all == NULL)
        return tsr_out_of_memory(err, "while planning");
    n = 0;
    for (size_t i = 0; i < plan->n_files; i++) {
        for (size_t k = 0; is_model_file(&plan->files[i], folder) && k < plan->files[i].n_tensors; k++)
            all[n++] = plan->files[i].tensors[k];
    }
    qsort(all, n, sizeof *all, by_name);
    tsr_text t = {0};
    write_index(&t, plan, all, n, strlen(folder));
    free(all);
    return tsr_plan_take_text(plan, folder, TSR_INDEX_NAME, &t, TSR_OK, err);
}

tsr_status tsr_plan_model_files(tsr_plan *plan, uint64_t max_bytes, const char *const *except, tsr_err *err)
{
    TSR_TRY(tsr_plan_pack(plan, "", max_bytes, err));
    TSR_TRY(tsr_plan_files_beside(plan, except, err));
    return tsr_plan_index(plan, "", false, err);
}
