/* The largest |x| of whole tensors, found ahead of the steps that need it. */
#include "convert/engine/engine_run.h"

#include "common/checked.h"
#include "quantize/mx_weight.h"

bool tsr_run_take_amax(tsr_run *r, size_t *index, uint64_t *unit)
{
    for (; r->next_amax < r->plan->n_amaxes; r->next_amax++, r->next_amax_unit = 0) {
        const uint64_t units = tsr_amax_units(r->plan->amaxes[r->next_amax]);
        if (r->amaxes[r->next_amax].left == 0 || r->next_amax_unit >= units)
            continue;
        *index = r->next_amax;
        *unit = r->next_amax_unit++;
        return true;
    }
    return false;
}

/* Asks for the input of the unit that some worker will take when this one is done. */
static void prefetch(const tsr_run *r, const tsr_amax *amax, uint64_t unit)
{
    if (unit >= tsr_amax_units(amax))
        return;
    const tsr_amax_rows at = tsr_amax_unit(amax, unit);
    tsr_checkpoint_prefetch(r->plan->sources[at.tensor->source], at.tensor, at.window.offset, at.window.row_bytes);
}

tsr_status tsr_run_do_amax(tsr_run *r, size_t index, uint64_t unit, char *memory, tsr_err *err)
{
    const tsr_amax_rows at = tsr_amax_unit(r->plan->amaxes[index], unit);
    const tsr_tensor *const t = at.tensor;
    const tsr_mx_rows rows = {.tensor = t,
                              .row = at.row,
                              .rows = at.rows,
                              .x = memory,
                              .scratch = memory + tsr_round_up(at.window.row_bytes, 64)};
    float amax = 0;
    prefetch(r, r->plan->amaxes[index], unit + r->workers);
    TSR_TRY(tsr_run_read_window(r, t, &at.window, memory, err));
    const tsr_status status = tsr_mx_amax(&r->kernels, &rows, &amax, err);
    if (status != TSR_OK)
        return tsr_prepend(err, status, "%s", r->plan->sources[t->source]->files[t->file].path);
    pthread_mutex_lock(&r->lock);
    tsr_amax_state *const s = &r->amaxes[index];
    s->amax = amax > s->amax ? amax : s->amax;
    r->bytes_read += at.window.row_bytes;
    if (--s->left == 0)
        pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return TSR_OK;
}
