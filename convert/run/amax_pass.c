/* Computes the largest |x| of whole tensors, ahead of the steps that need it. */
#include "convert/run/amax_pass.h"

#include "common/checked.h"
#include "convert/io/plan_reads.h"
#include "convert/run/windows.h"
#include "quantize/mx_weight.h"

bool tsr_run_next_amax(tsr_run *r, size_t *index, uint64_t *unit)
{
    for (; r->next_amax < r->plan->n_amaxes; r->next_amax++) {
        const tsr_amax_state *const s = &r->amaxes[r->next_amax];
        if (s->left == 0 || s->taken >= tsr_amax_units(r->plan->amaxes[r->next_amax]))
            continue;
        *index = r->next_amax;
        *unit = s->taken;
        return true;
    }
    return false;
}

void tsr_run_want_amax(tsr_run *r, const tsr_amax *amax)
{
    if (amax == NULL || r->amaxes[amax->index].wanted)
        return;
    r->amaxes[amax->index].wanted = true;
    r->amaxes[amax->index].left = tsr_amax_units(amax);
    if (amax->index < r->next_amax)
        r->next_amax = amax->index;
}

uint64_t tsr_run_count_amax(tsr_run *r, const tsr_amax *amax)
{
    if (amax == NULL || r->amaxes[amax->index].counted)
        return 0;
    r->amaxes[amax->index].counted = true;
    return tsr_amax_bytes(amax);
}

/* Asks the kernel to read ahead the input of a unit that comes after those of all workers. */
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

/* Computes the largest |x| of a unit whose input is in data[]; `memory` is scratch. TSR_E_VALUE, with its position, for
 * NaN or Inf. */
static tsr_status amax_of_rows(const tsr_cpu_kernels *kernels, const tsr_amax_rows *at, char *memory, void *const *data,
                               float *amax, tsr_err *err)
{
    tsr_mx_rows rows = {.tensor = at->tensor, .row = at->row, .rows = at->rows, .x = data[0], .scratch = memory};
    const void *values = NULL;
    if (at->decoded != NULL) {
        TSR_TRY(at->decoded->decode(at->decoded, at->row, at->rows, data, memory, kernels, &values, err));
        rows.x = values;
        rows.scratch = memory + tsr_round_up(at->decoded->memory(at->decoded, at->rows), 64);
    }
    return tsr_mx_amax(kernels, &rows, amax, err);
}

tsr_status tsr_run_begin_amax(tsr_task *task, tsr_err *err)
{
    const tsr_run *const r = task->work.run;
    const tsr_amax *const amax = r->plan->amaxes[task->work.index];
    const tsr_amax_rows at = tsr_amax_unit(amax, task->work.unit);
    char *memory = task->memory;
    prefetch(r, amax, task->work.unit + r->pool->workers);
    task->rows = at;
    for (uint32_t i = 0; i < at.n_in; i++) {
        task->data[i] = memory;
        if (at.in[i].rows > 0)
            TSR_TRY(tsr_run_read_window(task, tsr_amax_input(&at, i), &at.in[i], &memory, &task->data[i], err));
    }
    task->scratch = (char *)tsr_round_up((uintptr_t)memory, 64);
    return TSR_OK;
}

/* Adds the largest |x| of a unit to the amax. */
static void add_to_amax(tsr_run *r, size_t index, float amax, uint64_t bytes_in)
{
    pthread_mutex_lock(&r->pool->lock);
    tsr_amax_state *const s = &r->amaxes[index];
    s->amax = amax > s->amax ? amax : s->amax;
    r->bytes_read += bytes_in;
    if (--s->left == 0)
        pthread_cond_broadcast(&r->pool->changed);
    pthread_mutex_unlock(&r->pool->lock);
}

tsr_status tsr_run_compute_amax(tsr_task *task, tsr_err *err)
{
    tsr_run *const r = task->work.run;
    const tsr_tensor *in[TSR_MAX_INPUTS];
    float amax = 0;
    TSR_TRY(tsr_io_wait(task->io, &task->batch, err));
    const tsr_status status = amax_of_rows(&r->kernels, &task->rows, task->scratch, task->data, &amax, err);
    if (status != TSR_OK) {
        for (uint32_t i = 0; i < task->rows.n_in; i++)
            in[i] = tsr_amax_input(&task->rows, i);
        return tsr_run_fail_at(r, in[0], in, task->rows.n_in, status, err);
    }
    add_to_amax(r, task->work.index, amax, tsr_amax_rows_bytes(&task->rows));
    return TSR_OK;
}
