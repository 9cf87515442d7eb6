/* Finds names that occur twice by sorting them and comparing neighbours. */
#include "convert/plan/plan_names.h"

#include "common/text.h"

#include <stdlib.h>
#include <string.h>

#define SHARD_SUFFIX ".safetensors"
#define INDEX_SUFFIX ".safetensors.index.json"

static bool is_plain_name(const char *name)
{
    return *name != '\0' && *name != '.' && strpbrk(name, "/\\") == NULL && tsr_is_printable(name);
}

bool tsr_is_shard_name(const char *name)
{
    return is_plain_name(name) && tsr_ends_with(name, SHARD_SUFFIX);
}

bool tsr_is_index_name(const char *name)
{
    return is_plain_name(name) && tsr_ends_with(name, INDEX_SUFFIX);
}

typedef struct named {
    const char *name, *file;
} named;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

/* Sorts by name. Returns the first of two adjacent entries with the same name, or NULL. */
static const named *find_twice(named *all, size_t n)
{
    if (n > 1)
        qsort(all, n, sizeof *all, by_name);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(all[i - 1].name, all[i].name) == 0)
            return &all[i - 1];
    }
    return NULL;
}

static size_t take_tensors(named *to, const tsr_out_file *f)
{
    for (size_t i = 0; i < f->n_tensors; i++)
        to[i] = (named){f->tensors[i]->name, f->name};
    return f->n_tensors;
}

static tsr_status check_tensors(named *all, size_t n, tsr_err *err)
{
    const named *const twice = find_twice(all, n);
    if (twice == NULL)
        return TSR_OK;
    return tsr_fail(err, TSR_E_FORMAT,
                    "two output tensors would have the name '%s', in %s and %s; two source tensors map to it, or one "
                    "already has this name",
                    twice->name, twice->file, twice[1].file);
}

/* Returns true if a file is in the index's folder and listed in the index. Files that no index lists are ignored. */
static bool is_mapped(const tsr_out_file *f, const char *index)
{
    const char *const slash = strrchr(index, '/');
    const size_t folder = slash == NULL ? 0 : (size_t)(slash + 1 - index);
    return !f->raw && strncmp(f->name, index, folder) == 0 && strchr(f->name + folder, '/') == NULL &&
           strcmp(f->name + folder, TSR_AZP_NAME) != 0;
}

static tsr_status check_all(const tsr_plan *plan, named *all, tsr_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->n_files; i++)
        all[n++] = (named){plan->files[i].name, NULL};
    for (size_t i = 0; i < plan->n_texts; i++)
        all[n++] = (named){plan->texts[i].name, NULL};
    const named *const twice = find_twice(all, n);
    if (twice != NULL)
        return tsr_fail(err, TSR_E_FORMAT, "two output files would have the name '%s'", twice->name);
    for (size_t i = 0; i < plan->n_files; i++) {
        if (!plan->files[i].raw)
            TSR_TRY(check_tensors(all, take_tensors(all, &plan->files[i]), err));
    }
    for (size_t t = 0; t < plan->n_texts; t++) {
        if (!tsr_ends_with(plan->texts[t].name, INDEX_SUFFIX))
            continue;
        n = 0;
        for (size_t i = 0; i < plan->n_files; i++)
            n += is_mapped(&plan->files[i], plan->texts[t].name) ? take_tensors(all + n, &plan->files[i]) : 0;
        TSR_TRY(check_tensors(all, n, err));
    }
    return TSR_OK;
}

tsr_status tsr_plan_check_names(const tsr_plan *plan, tsr_err *err)
{
    size_t most = plan->n_files + plan->n_texts;
    for (size_t i = 0; i < plan->n_files; i++)
        most += plan->files[i].n_tensors;
    named *const all = malloc((most + 1) * sizeof *all);
    if (all == NULL)
        return tsr_out_of_memory(err, "while planning");
    const tsr_status status = check_all(plan, all, err);
    free(all);
    return status;
}
