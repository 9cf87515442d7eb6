/* Executes steps and their units. */
#include "convert/run/units.h"

#include "common/checked.h"
#include "convert/run/output_files.h"
#include "convert/run/step_blocks.h"
#include "convert/run/windows.h"

#include <stdlib.h>

/* Units that are read ahead besides those of workers. */
enum { UNITS_AHEAD = 2 };

/* Begins a step whose outputs are made by units of another one. */
static tsr_status begin_coproduced(tsr_run *r, size_t index, tsr_err *err)
{
    const size_t file = r->plan->steps[index].file;
    if (r->files[file].phase == TSR_FILE_WAITING)
        TSR_TRY(tsr_run_open_file(r, file, err));
    return tsr_run_begin_step(r, index, err);
}

tsr_status tsr_run_begin_step(tsr_run *r, size_t index, tsr_err *err)
{
    size_t other;
    const tsr_step *const step = &r->plan->steps[index];
    tsr_step_state *const s = calloc(1, sizeof *s);
    r->steps[index] = s;
    if (s == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", step->in[0]->name);
    /* An appended file is verified as one unit. */
    s->units = s->left = r->verifying && tsr_is_appended(r, step) ? 1 : step->op->units.count(step);
    s->partials = r->verifying ? NULL : calloc(s->units + 1, sizeof *s->partials);
    bool ok = r->verifying || s->partials != NULL;
    for (unsigned i = 0; i < step->n_out; i++) {
        if (tsr_is_buffered(step, i)) {
            s->buffered[i] = calloc(step->out[i]->bytes + 1, 1);
            ok = ok && s->buffered[i] != NULL;
        }
    }
    if (tsr_is_appended(r, step)) {
        s->stream = XXH3_createState();
        ok = ok && s->stream != NULL;
        if (ok)
            (void)XXH3_128bits_reset(s->stream);
    }
    if (!ok)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", step->in[0]->name);
    TSR_TRY(tsr_run_begin_blocks(r, index, err));
    return tsr_coproduces(r, index, &other) ? begin_coproduced(r, other, err) : TSR_OK;
}

void tsr_run_free_step(tsr_run *r, size_t index)
{
    tsr_step_state *const s = r->steps[index];
    if (s == NULL)
        return;
    for (unsigned i = 0; i < TSR_MAX_OUTPUTS; i++)
        free(s->buffered[i]);
    (void)XXH3_freeState(s->stream);
    tsr_run_free_blocks(s);
    free(s->partials);
    free(s);
    r->steps[index] = NULL;
}

void tsr_run_count_step(tsr_run *r, size_t index)
{
    tsr_file_state *const f = &r->files[r->plan->steps[index].file];
    size_t other;
    tsr_run_free_step(r, index);
    if (tsr_coproduces(r, index, &other))
        tsr_run_count_step(r, other);
    r->steps_done += tsr_run_makes_tensor(r->plan, index);
    if (--f->steps_left == 0) {
        f->phase = TSR_FILE_WHOLE;
        pthread_cond_broadcast(&r->pool->changed);
    }
}

/* ---- execution ---- */

/* Ends a step when all units are done: writes buffered outputs, adds statistics, lets the operation finish. */
static tsr_status end_step(tsr_run *r, size_t index, uint64_t *done, tsr_err *err)
{
    const tsr_step *const step = &r->plan->steps[index];
    tsr_step_state *const s = r->steps[index];
    const bool appended = tsr_is_appended(r, step);
    if (r->verifying && appended)
        return TSR_OK;
    if (!r->verifying && step->op->seal != NULL)
        step->op->seal(step, s->buffered);
    for (unsigned i = 0; i < step->n_out; i++) {
        if (!tsr_is_buffered(step, i) || step->out[i]->bytes == 0)
            continue;
        const uint64_t bytes = step->out[i]->bytes;
        const tsr_window all = {.rows = 1, .row_bytes = bytes, .pitch = bytes};
        if (appended) {
            TSR_TRY(tsr_run_append(r, index, s->turn, s->buffered[i], bytes, err));
            *done += bytes;
            continue;
        }
        TSR_TRY(r->verifying ? tsr_run_read_back(r, NULL, step->out[i], &all, s->buffered[i], err)
                             : tsr_run_write_window(r, step->out[i], &all, s->buffered[i], err));
        tsr_digests_take(&r->digests, &r->kernels, index, i, s->buffered[i]);
        *done += bytes;
    }
    if (r->verifying)
        return TSR_OK;
    tsr_quant_stats *const row = &r->rows.stats[index];
    *row = (tsr_quant_stats){0};
    r->rows.sums[index] = s->read;
    for (uint64_t u = 0; u < s->units; u++)
        tsr_quant_stats_add(row, &s->partials[u]);
    TSR_TRY(tsr_run_end_blocks(r, index, err));
    return step->op->finish == NULL ? TSR_OK : step->op->finish(step, s->buffered, row, err);
}

/* Advances *index and *unit by `n` units. Returns false if fewer are left, if the next step is not made here, or if
 * reads are shared, since other sequences may come first then. */
static bool go_on(const tsr_run *r, size_t *index, uint64_t *unit, uint64_t n)
{
    const tsr_plan *const plan = r->plan;
    uint64_t units = r->steps[*index]->units;
    for (*unit += n; *unit >= units; units = plan->steps[*index].op->units.count(&plan->steps[*index])) {
        if (r->pool->shared != NULL || *index + 1 >= plan->n_steps)
            return false;
        *unit -= units;
        ++*index;
        if (!r->files[plan->steps[*index].file].mine || tsr_is_coproduced(r, *index))
            return false;
    }
    return true;
}

/* Asks the kernel to read ahead a unit that a worker will take soon, so that the disk is busy while threads compute or
 * wait for writes. */
static void prefetch(const tsr_run *r, size_t index, uint64_t unit)
{
    if (r->verifying || !go_on(r, &index, &unit, r->pool->workers + UNITS_AHEAD))
        return;
    const tsr_step *const step = &r->plan->steps[index];
    const tsr_unit u = tsr_step_unit(step, unit);
    for (unsigned i = 0; i < TSR_MAX_INPUTS; i++) {
        const tsr_window *const w = &u.in[i];
        if (w->rows == 0)
            continue;
        tsr_run_prefetch_window(r, step->in[u.from[i]], w);
    }
}

/* Begins to read the input of a unit or, when verifying, its output. */
static tsr_status begin_reading(tsr_task *task, const tsr_step *step, char **memory, tsr_err *err)
{
    tsr_run *const r = task->work.run;
    tsr_unit *const u = &task->unit;
    for (unsigned i = 0; i < TSR_MAX_INPUTS && !r->verifying; i++) {
        u->in_data[i] = *memory;
        if (u->in[i].rows > 0)
            TSR_TRY(tsr_run_read_window(task, step->in[u->from[i]], &u->in[i], memory, &u->in_data[i], err));
        task->in += tsr_window_bytes(&u->in[i]);
    }
    for (unsigned i = 0; i < step->n_out; i++) {
        u->out_data[i] = r->steps[task->work.index]->buffered[i];
        if (!tsr_is_buffered(step, i))
            u->out_data[i] = tsr_run_place_output(r, step->out[i], &u->out[i], memory);
        if (!tsr_is_buffered(step, i) && r->verifying && tsr_is_by_unit(&r->digests, task->work.index, i))
            TSR_TRY(tsr_run_read_back(r, task, step->out[i], &u->out[i], u->out_data[i], err));
    }
    return TSR_OK;
}

tsr_status tsr_run_begin_unit(tsr_task *task, tsr_err *err)
{
    const tsr_run *const r = task->work.run;
    const tsr_step *const step = &r->plan->steps[task->work.index];
    tsr_step_state *const s = r->steps[task->work.index];
    tsr_unit *const u = &task->unit;
    char *memory = task->memory;
    *u = tsr_step_unit(step, task->work.unit);
    u->notes = s->blocks == NULL ? NULL : &task->notes;
    if (u->notes != NULL)
        tsr_block_notes_begin(u->notes, s->blocks);
    size_t other;
    for (unsigned i = 0; i < TSR_MAX_OUTPUTS; i++)
        u->coproduced_data[i] = tsr_coproduces(r, task->work.index, &other) ? r->steps[other]->buffered[i] : NULL;
    u->appended = &task->appended;
    u->amax = step->amax == NULL ? 0 : r->amaxes[step->amax->index].amax;
    task->in = task->appended = 0;
    task->read = (tsr_source_sum){0};
    task->done = 0;
    prefetch(r, task->work.index, task->work.unit);
    TSR_TRY(begin_reading(task, step, &memory, err));
    u->scratch = (char *)tsr_round_up((uintptr_t)memory, 64);
    return TSR_OK;
}

/* Returns true if the unit writes this output: it is not appended, buffered or linked. */
static bool is_taken(const tsr_task *task, const tsr_step *step, unsigned i)
{
    const tsr_run *const r = task->work.run;
    return !r->verifying && !tsr_is_appended(r, step) && i < step->n_out && !tsr_is_buffered(step, i) &&
           !r->files[step->file].linked;
}

/* Counts output i of a unit and begins to write it. `begun`: the output whose beginning has been written already, or
 * NULL. */
static tsr_status finish_output(tsr_task *task, const tsr_step *step, unsigned i, tsr_outgoing *begun, tsr_err *err)
{
    const tsr_run *const r = task->work.run;
    const tsr_unit *const u = &task->unit;
    const size_t index = task->work.index;
    tsr_digest *const digest =
        tsr_is_by_unit(&r->digests, index, i) ? tsr_digests_at(&r->digests, index, i) + task->work.unit : NULL;
    tsr_outgoing own;
    task->done += tsr_window_bytes(&u->out[i]);
    if (begun == NULL && is_taken(task, step, i) && tsr_run_begin_output(r, index, i, &u->out[i], u->out_data[i], &own))
        begun = &own;
    if (begun != NULL)
        return tsr_outgoing_end(begun, task->io, &task->batch, digest, err);
    if (digest != NULL)
        *digest = tsr_digest_of(&r->kernels, u->out_data[i], tsr_window_bytes(&u->out[i]));
    return r->verifying || r->files[step->file].linked
               ? TSR_OK
               : tsr_run_write_window(r, step->out[i], &u->out[i], u->out_data[i], err);
}

tsr_status tsr_run_compute_unit(tsr_task *task, tsr_err *err)
{
    tsr_run *const r = task->work.run;
    const size_t index = task->work.index;
    const tsr_step *const step = &r->plan->steps[index];
    tsr_step_state *const s = r->steps[index];
    tsr_unit *const u = &task->unit;
    const bool appended = tsr_is_appended(r, step);
    tsr_outgoing first; /* output 0, written while it is computed */
    TSR_TRY(tsr_io_wait(task->io, &task->batch, err));
    const bool taken = is_taken(task, step, 0) && tsr_run_begin_output(r, index, 0, &u->out[0], u->out_data[0], &first);
    u->sink = taken ? &first.sink : NULL;
    if (!r->verifying) {
        const uint64_t unit = task->work.unit;
        task->read = tsr_source_sum_of(step, u, &r->kernels);
        const tsr_status status = step->op->units.run(step, unit, u, &r->kernels, &s->partials[unit], err);
        if (status != TSR_OK)
            return tsr_run_fail_at(r, step->in[u->from[0]], step->in, step->n_in, status, err);
    }
    if (appended) {
        TSR_TRY(r->verifying ? tsr_run_digest_appended(r, index, task->memory, r->pool->unit_bytes, err)
                             : tsr_run_append(r, index, task->work.unit, u->out_data[0], task->appended, err));
        task->done = task->appended;
    }
    for (unsigned i = 0; i < step->n_out && !appended; i++) {
        if (!tsr_is_buffered(step, i))
            TSR_TRY(finish_output(task, step, i, i == 0 && taken ? &first : NULL, err));
    }
    return TSR_OK;
}

/* Adds to the bytes written or read back of a step's file. Called with the lock held, so that the thread that ends
 * the step sees the digests of all units. */
static void count_bytes(tsr_run *r, size_t index, uint64_t bytes)
{
    r->files[r->plan->steps[index].file].done += bytes;
}

/* Counts a unit as done, and ends its step if it was the last. */
static tsr_status count_unit(tsr_task *task, tsr_err *err)
{
    tsr_run *const r = task->work.run;
    const size_t index = task->work.index;
    tsr_step_state *const s = r->steps[index];
    pthread_mutex_lock(&r->pool->lock);
    r->bytes_read += r->verifying ? task->done : task->in;
    r->bytes_written += r->verifying || r->files[r->plan->steps[index].file].linked ? 0 : task->done;
    tsr_source_sum_add(&s->read, &task->read);
    count_bytes(r, index, task->done);
    const bool last = --s->left == 0;
    pthread_mutex_unlock(&r->pool->lock);
    if (!last)
        return TSR_OK;
    uint64_t buffered = 0, buffered_by_other = 0;
    size_t other;
    const bool coproduces = tsr_coproduces(r, index, &other);
    TSR_TRY(end_step(r, index, &buffered, err));
    if (coproduces)
        TSR_TRY(end_step(r, other, &buffered_by_other, err));
    pthread_mutex_lock(&r->pool->lock);
    count_bytes(r, index, buffered);
    if (coproduces)
        count_bytes(r, other, buffered_by_other);
    tsr_run_count_step(r, index);
    pthread_mutex_unlock(&r->pool->lock);
    return TSR_OK;
}

tsr_status tsr_run_end_unit(tsr_task *task, tsr_err *err)
{
    tsr_run *const r = task->work.run;
    const size_t index = task->work.index;
    TSR_TRY(tsr_io_wait(task->io, &task->batch, err));
    if (task->unit.notes != NULL)
        tsr_block_cells_add(r->steps[index]->blocks, task->unit.notes);
    return count_unit(task, err);
}
