/* The largest |x| of whole tensors, found ahead of the steps that need it. */
#include "convert/engine/engine_run.h"

#include "common/checked.h"
#include "convert/engine/plan_reads.h"
#include "quantize/mx_weight.h"

bool tsr_run_next_amax(tsr_run *r, size_t *index, uint64_t *unit)
{
    for (; r->next_amax < r->plan->n_amaxes; r->next_amax++, r->next_amax_unit = 0) {
        const uint64_t units = tsr_amax_units(r->plan->amaxes[r->next_amax]);
        if (r->amaxes[r->next_amax].left == 0 || r->next_amax_unit >= units)
            continue;
        *index = r->next_amax;
        *unit = r->next_amax_unit;
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
    for (uint32_t i = 0; i < at.n_in; i++) {
        if (at.in[i].rows > 0)
            tsr_run_prefetch_window(r, tsr_amax_input(&at, i), &at.in[i]);
    }
}

/* Reads what the unit needs to data[], and returns the memory behind it. */
static tsr_status read_inputs(const tsr_run *r, const tsr_amax_rows *at, char **memory, void **data, tsr_err *err)
{
    for (uint32_t i = 0; i < at->n_in; i++) {
        data[i] = *memory;
        *memory += tsr_round_up(tsr_window_bytes(&at->in[i]), 64);
        if (at->in[i].rows > 0)
            TSR_TRY(tsr_run_read_window(r, tsr_amax_input(at, i), &at->in[i], data[i], err));
    }
    return TSR_OK;
}

static tsr_status find_amax(const tsr_run *r, const tsr_amax_rows *at, char *memory, void *const *data, float *amax,
                            tsr_err *err)
{
    tsr_mx_rows rows = {.tensor = at->tensor, .row = at->row, .rows = at->rows, .x = data[0], .scratch = memory};
    const void *values = NULL;
    if (at->decoded != NULL) {
        TSR_TRY(at->decoded->decode(at->decoded, at->row, at->rows, data, memory, &r->kernels, &values, err));
        rows.x = values;
        rows.scratch = memory + tsr_round_up(at->decoded->memory(at->decoded, at->rows), 64);
    }
    return tsr_mx_amax(&r->kernels, &rows, amax, err);
}

tsr_status tsr_run_do_amax(tsr_run *r, size_t index, uint64_t unit, char *memory, tsr_err *err)
{
    const tsr_amax_rows at = tsr_amax_unit(r->plan->amaxes[index], unit);
    const tsr_tensor *const t = tsr_amax_input(&at, 0);
    void *data[TSR_DECODED_INPUTS];
    float amax = 0;
    prefetch(r, r->plan->amaxes[index], unit + r->crew->workers);
    TSR_TRY(read_inputs(r, &at, &memory, data, err));
    const tsr_status status = find_amax(r, &at, memory, data, &amax, err);
    if (status != TSR_OK)
        return tsr_prepend(err, status, "%s", r->plan->sources[t->source]->files[t->file].path);
    pthread_mutex_lock(&r->crew->lock);
    tsr_amax_state *const s = &r->amaxes[index];
    s->amax = amax > s->amax ? amax : s->amax;
    r->bytes_read += tsr_amax_rows_bytes(&at);
    if (--s->left == 0)
        pthread_cond_broadcast(&r->crew->changed);
    pthread_mutex_unlock(&r->crew->lock);
    return TSR_OK;
}
