/* The scheduler: which unit comes next, and what a worker does with it. */
#include "convert/engine/engine_run.h"

#include "common/checked.h"

#include <stdlib.h>

/* Files are synced one after another. This bounds how many are open and wait for it, besides one of each lane, however small they
 * are. */
enum { MOST_OPEN_FILES = 64 };

/* Units whose input the page cache is asked for while each worker has one. */
enum { UNITS_AHEAD = 2 };

static tsr_status begin_step(tsr_run *r, size_t index, tsr_err *err);

/* A step whose outputs are to be made by units of another one, which begins. */
static tsr_status begin_given(tsr_run *r, size_t index, tsr_err *err)
{
    const size_t file = r->plan->steps[index].file;
    if (r->files[file].phase == TSR_FILE_WAITING)
        TSR_TRY(tsr_run_open_file(r, file, err));
    return begin_step(r, index, err);
}

static tsr_status begin_step(tsr_run *r, size_t index, tsr_err *err)
{
    size_t given;
    const tsr_step *const step = &r->plan->steps[index];
    tsr_step_state *const s = calloc(1, sizeof *s);
    r->steps[index] = s;
    if (s == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", step->in[0]->name);
    /* An appended file is verified in one go. */
    s->units = s->left = r->verifying && tsr_is_appended(r, step) ? 1 : step->op->units(step);
    s->partials = r->verifying ? NULL : calloc(s->units + 1, sizeof *s->partials);
    bool ok = r->verifying || s->partials != NULL;
    for (unsigned i = 0; i < step->n_out; i++) {
        if (tsr_is_held(step, i)) {
            s->held[i] = calloc(step->out[i]->bytes + 1, 1);
            ok = ok && s->held[i] != NULL;
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
    return tsr_gives(r, index, &given) ? begin_given(r, given, err) : TSR_OK;
}

void tsr_run_free_step(tsr_run *r, size_t index)
{
    tsr_step_state *const s = r->steps[index];
    if (s == NULL)
        return;
    for (unsigned i = 0; i < TSR_MAX_OUTPUTS; i++)
        free(s->held[i]);
    (void)XXH3_freeState(s->stream);
    tsr_run_free_blocks(s);
    free(s->partials);
    free(s);
    r->steps[index] = NULL;
}

bool tsr_run_makes_tensor(const tsr_plan *plan, size_t index)
{
    const tsr_step *const step = &plan->steps[index];
    return step->op != &tsr_copy_op || !plan->files[step->file].raw;
}

/* A step is over, and what it gives. Called with the lock held. */
static void count_step(tsr_run *r, size_t index)
{
    tsr_file_state *const f = &r->files[r->plan->steps[index].file];
    size_t given;
    tsr_run_free_step(r, index);
    if (tsr_gives(r, index, &given))
        count_step(r, given);
    r->steps_done += tsr_run_makes_tensor(r->plan, index);
    if (--f->steps_left == 0) {
        f->phase = TSR_FILE_WHOLE;
        pthread_cond_broadcast(&r->crew->changed);
    }
}

static tsr_turn take_amax(tsr_run *r, tsr_work *w)
{
    w->amax = tsr_run_next_amax(r, &w->index, &w->unit);
    if (!w->amax)
        return TSR_TURN_WAITS;
    r->next_amax_unit++;
    return TSR_TURN_TAKEN;
}

/* Takes a unit of the next step; false: an empty tensor has none, and is done. */
static bool take_next(tsr_lane *lane, tsr_work *w)
{
    tsr_run *const r = lane->run;
    const size_t index = lane->next_step;
    const uint64_t units = r->steps[index]->units;
    w->amax = false;
    w->index = index;
    w->unit = lane->next_unit++;
    lane->placed = false;
    if (lane->next_unit >= units) {
        lane->next_step++;
        lane->next_unit = 0;
    }
    if (units > 0)
        return true;
    count_step(r, index);
    return false;
}

tsr_turn tsr_lane_take_unit(tsr_lane *lane, tsr_work *w)
{
    tsr_run *const r = lane->run;
    tsr_err err = {{0}};
    tsr_status status = TSR_OK;
    w->run = r;
    while (status == TSR_OK && r->failure.status == TSR_OK && tsr_lane_find_step(lane)) {
        const size_t file = r->plan->steps[lane->next_step].file;
        if (tsr_is_cancelled(r->crew->options->cancel)) {
            status = tsr_fail(&err, TSR_E_CANCELLED, "interrupted");
            continue;
        }
        if (tsr_lane_wants_amax(lane))
            return take_amax(r, w);
        if (r->files[file].phase == TSR_FILE_WAITING) {
            if (r->n_open >= MOST_OPEN_FILES + r->n_lanes)
                return TSR_TURN_WAITS;
            status = tsr_run_open_file(r, file, &err);
        }
        if (status == TSR_OK && r->steps[lane->next_step] == NULL)
            status = begin_step(r, lane->next_step, &err);
        if (status == TSR_OK && take_next(lane, w))
            return TSR_TURN_TAKEN;
    }
    /* Fail before the lock is released, so that no other worker takes a unit of a step that was only half begun. */
    if (status != TSR_OK)
        tsr_run_note_failure(r, status, &err);
    return TSR_TURN_OVER;
}

/* ---- carrying out ---- */

/* All units are done: write what was held, sum up, let the operation finish. */
static tsr_status end_step(tsr_run *r, size_t index, uint64_t *done, tsr_err *err)
{
    const tsr_step *const step = &r->plan->steps[index];
    tsr_step_state *const s = r->steps[index];
    const bool appended = tsr_is_appended(r, step);
    if (r->verifying && appended)
        return TSR_OK;
    if (!r->verifying && step->op->seal != NULL)
        step->op->seal(step, s->held);
    for (unsigned i = 0; i < step->n_out; i++) {
        if (!tsr_is_held(step, i) || step->out[i]->bytes == 0)
            continue;
        const uint64_t bytes = step->out[i]->bytes;
        const tsr_window all = {.rows = 1, .row_bytes = bytes, .pitch = bytes};
        if (appended) {
            TSR_TRY(tsr_run_append(r, index, s->turn, s->held[i], bytes, err));
            *done += bytes;
            continue;
        }
        TSR_TRY(r->verifying ? tsr_run_read_back(r, NULL, step->out[i], &all, s->held[i], err)
                             : tsr_run_write_window(r, step->out[i], &all, s->held[i], err));
        tsr_digests_take(&r->digests, &r->kernels, index, i, s->held[i]);
        *done += bytes;
    }
    if (r->verifying)
        return TSR_OK;
    tsr_quant_stats *const row = &r->rows[index];
    *row = (tsr_quant_stats){0};
    for (uint64_t u = 0; u < s->units; u++)
        tsr_quant_stats_add(row, &s->partials[u]);
    TSR_TRY(tsr_run_end_blocks(r, index, err));
    return step->op->finish == NULL ? TSR_OK : step->op->finish(step, s->held, row, err);
}

/* Goes `n` units on from a unit, into the steps that follow where nothing is shared: those are this lane's. False: so many are
 * not left, or what follows is not this run's to make. */
static bool go_on(const tsr_run *r, size_t *index, uint64_t *unit, uint64_t n)
{
    const tsr_plan *const plan = r->plan;
    uint64_t units = r->steps[*index]->units;
    for (*unit += n; *unit >= units; units = plan->steps[*index].op->units(&plan->steps[*index])) {
        if (r->crew->shared != NULL || *index + 1 >= plan->n_steps)
            return false;
        *unit -= units;
        ++*index;
        if (!r->files[plan->steps[*index].file].mine || tsr_is_given(r, *index))
            return false;
    }
    return true;
}

/* Asks for the input of a unit that some worker will take soon: a few ahead of all of them, so that the disk has something to read
 * while a thread computes and while it waits for the disk to write. */
static void prefetch(const tsr_run *r, size_t index, uint64_t unit)
{
    if (r->verifying || !go_on(r, &index, &unit, r->crew->workers + UNITS_AHEAD))
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

/* Begins to read the unit's input or, when verifying, its output. */
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
        u->out_data[i] = r->steps[task->work.index]->held[i];
        if (!tsr_is_held(step, i))
            u->out_data[i] = tsr_run_place_output(r, step->out[i], &u->out[i], memory);
        if (!tsr_is_held(step, i) && r->verifying && tsr_is_by_unit(&r->digests, task->work.index, i))
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
    size_t given;
    for (unsigned i = 0; i < TSR_MAX_OUTPUTS; i++)
        u->given_data[i] = tsr_gives(r, task->work.index, &given) ? r->steps[given]->held[i] : NULL;
    u->appended = &task->appended;
    u->amax = step->amax == NULL ? 0 : r->amaxes[step->amax->index].amax;
    task->in = task->appended = 0;
    task->done = 0;
    prefetch(r, task->work.index, task->work.unit);
    TSR_TRY(begin_reading(task, step, &memory, err));
    u->scratch = (char *)tsr_round_up((uintptr_t)memory, 64);
    return TSR_OK;
}

/* Whether an output of a unit goes to its file as one that the unit has to itself. */
static bool is_taken(const tsr_task *task, const tsr_step *step, unsigned i)
{
    const tsr_run *const r = task->work.run;
    return !r->verifying && !tsr_is_appended(r, step) && i < step->n_out && !tsr_is_held(step, i) &&
           !r->files[step->file].linked;
}

/* Counts output i of a unit and begins to write it; begun: its beginning is taken already. */
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
    tsr_outgoing first; /* output 0, which is taken while it is made */
    TSR_TRY(tsr_io_wait(task->io, &task->batch, err));
    const bool taken = is_taken(task, step, 0) && tsr_run_begin_output(r, index, 0, &u->out[0], u->out_data[0], &first);
    u->taker = taken ? &first.taker : NULL;
    if (!r->verifying) {
        const uint64_t unit = task->work.unit;
        const tsr_digest read = tsr_source_sum(step, u, &r->kernels);
        const tsr_status status = step->op->run(step, unit, u, &r->kernels, &s->partials[unit], err);
        tsr_source_sum_add(&s->partials[unit], read);
        const tsr_tensor *const t = step->in[u->from[0]];
        if (status != TSR_OK)
            return tsr_prepend(err, status, "%s", r->plan->sources[t->source]->files[t->file].path);
    }
    if (appended) {
        TSR_TRY(r->verifying ? tsr_run_digest_appended(r, index, task->memory, r->crew->unit_bytes, err)
                             : tsr_run_append(r, index, task->work.unit, u->out_data[0], task->appended, err));
        task->done = task->appended;
    }
    for (unsigned i = 0; i < step->n_out && !appended; i++) {
        if (!tsr_is_held(step, i))
            TSR_TRY(finish_output(task, step, i, i == 0 && taken ? &first : NULL, err));
    }
    return TSR_OK;
}

/* Adds to what was written of the file of a step, or read back. Called with the lock held: the thread that sees the last unit
 * done must see every digest. */
static void count_bytes(tsr_run *r, size_t index, uint64_t bytes)
{
    r->files[r->plan->steps[index].file].done += bytes;
}

tsr_status tsr_run_end_unit(tsr_task *task, tsr_err *err)
{
    tsr_run *const r = task->work.run;
    const size_t index = task->work.index;
    TSR_TRY(tsr_io_wait(task->io, &task->batch, err));
    if (task->unit.notes != NULL)
        tsr_block_cells_add(r->steps[index]->blocks, task->unit.notes);
    return tsr_run_count_unit(r, index, task->in, task->done, err);
}

tsr_status tsr_run_count_unit(tsr_run *r, size_t index, uint64_t in, uint64_t done, tsr_err *err)
{
    tsr_step_state *const s = r->steps[index];
    pthread_mutex_lock(&r->crew->lock);
    r->bytes_read += r->verifying ? done : in;
    r->bytes_written += r->verifying || r->files[r->plan->steps[index].file].linked ? 0 : done;
    count_bytes(r, index, done);
    const bool last = --s->left == 0;
    pthread_mutex_unlock(&r->crew->lock);
    if (!last)
        return TSR_OK;
    uint64_t held = 0, held_by_given = 0;
    size_t given;
    const bool gives = tsr_gives(r, index, &given);
    TSR_TRY(end_step(r, index, &held, err));
    if (gives)
        TSR_TRY(end_step(r, given, &held_by_given, err));
    pthread_mutex_lock(&r->crew->lock);
    count_bytes(r, index, held);
    if (gives)
        count_bytes(r, given, held_by_given);
    count_step(r, index);
    pthread_mutex_unlock(&r->crew->lock);
    return TSR_OK;
}
