/* The scheduler: which unit comes next, and what a worker does with it. */
#include "convert/engine/engine_run.h"

#include "common/checked.h"

#include <stdlib.h>

/* Files are synced one after another. This bounds how many are open and wait for it, however small they are. */
enum { MOST_OPEN_FILES = 64 };

static tsr_status begin_step(tsr_run *r, size_t index, tsr_err *err)
{
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
            (void)XXH3_64bits_reset(s->stream);
    }
    return ok ? tsr_run_begin_blocks(r, index, err)
              : tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", step->in[0]->name);
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

/* Called with the lock held. */
static void count_step(tsr_run *r, size_t index)
{
    tsr_file_state *const f = &r->files[r->plan->steps[index].file];
    r->steps_done += tsr_run_makes_tensor(r->plan, index);
    if (--f->steps_left == 0) {
        f->phase = TSR_FILE_WHOLE;
        pthread_cond_broadcast(&r->changed);
    }
}

/* A unit of a step, or of an amax that a step waits for. */
typedef struct work {
    bool amax;
    size_t index;
    uint64_t unit;
} work;

/* The next unit in the plan's order; while its step's amax is not known, one of the amaxes', which then run ahead. False
 * when there is none left or the run has failed. */
static bool take_unit(tsr_run *r, work *w)
{
    tsr_err err = {{0}};
    tsr_status status = TSR_OK;
    bool taken = false;
    pthread_mutex_lock(&r->lock);
    while (!taken && status == TSR_OK && r->failure.status == TSR_OK && r->next_step < r->plan->n_steps) {
        const tsr_step *const step = &r->plan->steps[r->next_step];
        if (!r->files[step->file].mine) {
            r->next_step++;
            continue;
        }
        if (tsr_is_cancelled(r->options->run.cancel)) {
            status = tsr_fail(&err, TSR_E_CANCELLED, "interrupted");
            continue;
        }
        if (step->amax != NULL && r->amaxes[step->amax->index].left > 0) {
            taken = w->amax = tsr_run_take_amax(r, &w->index, &w->unit);
            if (!taken)
                pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        if (r->files[step->file].phase == TSR_FILE_WAITING) {
            if (r->n_open >= MOST_OPEN_FILES) {
                pthread_cond_wait(&r->changed, &r->lock);
                continue;
            }
            status = tsr_run_open_file(r, step->file, &err);
        }
        if (status == TSR_OK && r->steps[r->next_step] == NULL)
            status = begin_step(r, r->next_step, &err);
        if (status != TSR_OK)
            continue;
        const uint64_t units = r->steps[r->next_step]->units;
        *w = (work){.index = r->next_step, .unit = r->next_unit++};
        taken = units > 0;
        if (r->next_unit >= units) {
            r->next_step++;
            r->next_unit = 0;
        }
        if (!taken) { /* an empty tensor has no units */
            tsr_run_free_step(r, w->index);
            count_step(r, w->index);
        }
    }
    /* Fail before the lock is released, so that no other worker takes a unit of a step that was only half begun. */
    if (status != TSR_OK)
        tsr_run_note_failure(r, status, &err);
    pthread_mutex_unlock(&r->lock);
    return taken;
}

/* All units are done: write what was held, sum up, let the operation finish. */
static tsr_status end_step(tsr_run *r, size_t index, uint64_t *digest, tsr_err *err)
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
        TSR_TRY(appended ? tsr_run_append(r, index, s->turn, s->held[i], bytes, err)
                         : tsr_run_transfer_window(r, step->out[i], &all, s->held[i], digest, err));
    }
    if (r->verifying)
        return TSR_OK;
    if (appended)
        *digest = XXH3_64bits_digest(s->stream);
    tsr_quant_stats *const row = &r->rows[index];
    *row = (tsr_quant_stats){0};
    for (uint64_t u = 0; u < s->units; u++)
        tsr_quant_stats_add(row, &s->partials[u]);
    TSR_TRY(tsr_run_end_blocks(r, index, err));
    return step->op->finish == NULL ? TSR_OK : step->op->finish(step, s->held, row, err);
}

/* Lays the unit's buffers out in the worker's memory. */
static void place_buffers(const tsr_step *step, const tsr_step_state *s, tsr_unit *u, char *memory)
{
    for (unsigned i = 0; i < TSR_MAX_INPUTS; i++) {
        u->in_data[i] = memory;
        memory += tsr_round_up(tsr_window_bytes(&u->in[i]), 64);
    }
    for (unsigned i = 0; i < step->n_out; i++) {
        u->out_data[i] = tsr_is_held(step, i) ? s->held[i] : memory;
        if (!tsr_is_held(step, i))
            memory += tsr_round_up(tsr_window_bytes(&u->out[i]), 64);
    }
    u->scratch = memory;
}

/* Asks for the input of the unit that some worker will take when this one is done. */
static void prefetch(const tsr_run *r, const tsr_step *step, const tsr_step_state *s, uint64_t unit)
{
    const uint64_t ahead = unit + r->workers;
    if (r->verifying || ahead >= s->units)
        return;
    const tsr_unit u = tsr_step_unit(step, ahead);
    for (unsigned i = 0; i < TSR_MAX_INPUTS; i++) {
        const tsr_window *const w = &u.in[i];
        if (w->rows == 0)
            continue;
        const tsr_tensor *const t = step->in[u.from[i]];
        tsr_checkpoint_prefetch(r->plan->sources[t->source], t, w->offset, (w->rows - 1) * w->pitch + w->row_bytes);
    }
}

static tsr_status do_unit(tsr_run *r, size_t index, uint64_t unit, char *memory, tsr_err *err)
{
    const tsr_step *const step = &r->plan->steps[index];
    tsr_step_state *const s = r->steps[index];
    const bool appended = tsr_is_appended(r, step);
    uint64_t in = 0, out = 0, digest = 0, made = 0;
    tsr_unit u = tsr_step_unit(step, unit);
    tsr_block_notes notes;
    u.notes = s->blocks == NULL ? NULL : &notes;
    if (u.notes != NULL)
        tsr_block_notes_begin(&notes, s->blocks);
    u.appended = &made;
    u.amax = step->amax == NULL ? 0 : r->amaxes[step->amax->index].amax;
    place_buffers(step, s, &u, memory);
    prefetch(r, step, s, unit);
    if (!r->verifying) {
        for (unsigned i = 0; i < TSR_MAX_INPUTS; i++) {
            if (u.in[i].rows > 0)
                TSR_TRY(tsr_run_read_window(r, step->in[u.from[i]], &u.in[i], u.in_data[i], err));
            in += tsr_window_bytes(&u.in[i]);
        }
        const tsr_status status = step->op->run(step, unit, &u, &r->kernels, &s->partials[unit], err);
        const tsr_tensor *const t = step->in[u.from[0]];
        if (status != TSR_OK)
            return tsr_prepend(err, status, "%s", r->plan->sources[t->source]->files[t->file].path);
    }
    if (appended) {
        TSR_TRY(r->verifying ? tsr_run_digest_appended(r, index, memory, r->unit_bytes, &digest, err)
                             : tsr_run_append(r, index, unit, u.out_data[0], made, err));
        out = made;
    }
    for (unsigned i = 0; i < step->n_out && !appended; i++) {
        if (!tsr_is_held(step, i)) {
            TSR_TRY(tsr_run_transfer_window(r, step->out[i], &u.out[i], u.out_data[i], &digest, err));
            out += tsr_window_bytes(&u.out[i]);
        }
    }
    if (u.notes != NULL)
        tsr_block_cells_add(s->blocks, u.notes);
    pthread_mutex_lock(&r->lock);
    r->bytes_read += r->verifying ? out : in;
    r->bytes_written += r->verifying ? 0 : out;
    /* Under the same lock as the count: the thread that sees the last unit done must see every digest. */
    r->files[step->file].digest += digest;
    const bool last = --s->left == 0;
    pthread_mutex_unlock(&r->lock);
    if (!last)
        return TSR_OK;
    digest = 0;
    TSR_TRY(end_step(r, index, &digest, err));
    pthread_mutex_lock(&r->lock);
    r->files[step->file].digest += digest;
    tsr_run_free_step(r, index);
    count_step(r, index);
    pthread_mutex_unlock(&r->lock);
    return TSR_OK;
}

void *tsr_run_work(void *argument)
{
    tsr_run *const r = argument;
    char *const memory = aligned_alloc(64, tsr_round_up(r->unit_bytes + 64, 64));
    tsr_err err = {{0}};
    work w = {0};
    if (memory == NULL)
        tsr_run_fail(r, tsr_fail(&err, TSR_E_NOMEM, "out of memory for a worker's %llu bytes", U64(r->unit_bytes)),
                     &err);
    while (memory != NULL && take_unit(r, &w)) {
        const tsr_status status =
            w.amax ? tsr_run_do_amax(r, w.index, w.unit, memory, &err) : do_unit(r, w.index, w.unit, memory, &err);
        if (status != TSR_OK)
            tsr_run_fail(r, status, &err);
    }
    free(memory);
    return NULL;
}
