/* Compares the state of each source file with its state when it was opened. */
#include "convert/records/watch.h"

#include <stdlib.h>

tsr_status tsr_watch_begin(tsr_watch *w, const tsr_plan *plan, const bool *whole, tsr_err *err)
{
    *w = (tsr_watch){.first = calloc(plan->n_sources + 1, sizeof *w->first)};
    for (size_t k = 0; w->first != NULL && k < plan->n_sources; k++)
        w->first[k + 1] = w->first[k] + plan->sources[k]->n_files + plan->sources[k]->n_side_files;
    w->seen = w->first == NULL ? NULL : calloc(w->first[plan->n_sources] + 1, sizeof *w->seen);
    w->linked = w->seen == NULL ? NULL : calloc(w->first[plan->n_sources] + 1, sizeof *w->linked);
    if (w->linked == NULL) {
        tsr_watch_end(w);
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the files of %zu sources", plan->n_sources);
    }
    for (size_t i = 0; whole != NULL && i < plan->n_files; i++) {
        const tsr_tensor *const t = whole[i] ? plan->steps[plan->files[i].first_step].in[0] : NULL;
        if (t != NULL)
            w->linked[w->first[t->source] + t->file] = true;
    }
    return TSR_OK;
}

tsr_status tsr_watch_check(tsr_watch *w, const tsr_plan *plan, size_t file, tsr_err *err)
{
    const tsr_out_file *const f = &plan->files[file];
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++) {
        for (uint32_t i = 0; i < plan->steps[s].n_in; i++) {
            const tsr_tensor *const t = plan->steps[s].in[i];
            const size_t number = w->first[t->source] + t->file;
            if (w->seen[number] != file + 1)
                TSR_TRY(tsr_checkpoint_unchanged(plan->sources[t->source], t->file, w->linked[number], err));
            w->seen[number] = file + 1;
        }
    }
    return TSR_OK;
}

static bool reads(const tsr_plan *plan, size_t file, size_t source, size_t source_file)
{
    const tsr_out_file *const f = &plan->files[file];
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++) {
        for (uint32_t i = 0; i < plan->steps[s].n_in; i++) {
            if (plan->steps[s].in[i]->source == source && plan->steps[s].in[i]->file == source_file)
                return true;
        }
    }
    return false;
}

tsr_status tsr_watch_check_all(tsr_watch *w, const tsr_plan *plan, bool *finished, tsr_err *err)
{
    tsr_status first = TSR_OK;
    for (size_t k = 0; k < plan->n_sources; k++) {
        for (size_t i = 0; i < w->first[k + 1] - w->first[k]; i++) {
            const tsr_status status =
                tsr_checkpoint_unchanged(plan->sources[k], i, w->linked[w->first[k] + i], first == TSR_OK ? err : NULL);
            first = first == TSR_OK ? status : first;
            for (size_t file = 0; status != TSR_OK && file < plan->n_files; file++)
                finished[file] = finished[file] && !reads(plan, file, k, i);
        }
    }
    return first;
}

void tsr_watch_end(tsr_watch *w)
{
    free(w->first);
    free(w->seen);
    free(w->linked);
    *w = (tsr_watch){0};
}
