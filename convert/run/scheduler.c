/* Schedules units and commits. */
#include "convert/run/scheduler.h"

#include "convert/io/plan_reads.h"
#include "convert/run/amax_pass.h"
#include "convert/run/output_files.h"
#include "convert/run/rank_files.h"
#include "convert/run/units.h"

/* The most files that are open and waiting for fsync, besides one of each sequence. */
enum { MOST_OPEN_FILES = 64 };

/* Result of a request for a unit. */
typedef enum tsr_schedule {
    TSR_UNIT_TAKEN,
    TSR_UNIT_NOT_READY, /* other units must be done first */
    TSR_NO_UNIT_LEFT,   /* none is left, or the run has failed */
} tsr_schedule;

void tsr_schedule_begin(tsr_run *r)
{
    const tsr_plan *const plan = r->plan;
    r->n_sequences = 0;
    for (size_t i = 0; i < plan->n_files; i++) {
        const tsr_out_file *const f = &plan->files[i];
        if (i == 0 || (f->begins_sequence && r->pool->shared != NULL))
            r->sequences[r->n_sequences++] = (tsr_file_sequence){.run = r, .next_step = f->first_step, .next_file = i};
        tsr_file_sequence *const sequence = &r->sequences[r->n_sequences - 1];
        sequence->end_step = f->first_step + f->n_steps;
        sequence->end_file = i + 1;
    }
}

/* Skips the steps of files that take no part, and those whose outputs other steps make. Returns false when none is
 * left. */
static bool find_step(tsr_file_sequence *sequence)
{
    tsr_run *const r = sequence->run;
    for (; sequence->next_step < sequence->end_step; sequence->next_step++) {
        const size_t file = r->plan->steps[sequence->next_step].file;
        tsr_run_claim_files(r, file);
        if (r->files[file].mine && !tsr_is_coproduced(r, sequence->next_step))
            return true;
    }
    tsr_run_claim_files(r, sequence->end_file - 1); /* the last files may have no steps */
    return false;
}

/* Returns true if the next step needs an amax that is not known yet. */
static bool wants_amax(const tsr_file_sequence *sequence)
{
    const tsr_step *const step = &sequence->run->plan->steps[sequence->next_step];
    return step->amax != NULL && sequence->run->amaxes[step->amax->index].left > 0;
}

/* ---- places ---- */

typedef struct placing {
    const tsr_run *run;
    uint64_t place; /* UINT64_MAX: not found yet */
} placing;

static tsr_status note_place(void *data, const tsr_tensor *t, const tsr_window *w, tsr_err *err)
{
    placing *const p = data;
    (void)err;
    if (p->place == UINT64_MAX)
        p->place = tsr_shared_place(p->run->pool->shared, p->run->plan->sources[t->source], t, w);
    return TSR_OK;
}

static uint64_t find_place(tsr_file_sequence *sequence)
{
    tsr_run *const r = sequence->run;
    placing p = {.run = r, .place = UINT64_MAX};
    uint64_t unit;
    size_t index;
    if (!find_step(sequence))
        return 0; /* no unit is left */
    const tsr_step *const step = &r->plan->steps[sequence->next_step];
    if (!wants_amax(sequence) && step->op->units.count(step) > 0)
        (void)!tsr_step_reads(step, sequence->next_unit, note_place, &p, NULL);
    else if (wants_amax(sequence) && tsr_run_next_amax(r, &index, &unit))
        (void)!tsr_amax_reads(r->plan->amaxes[index], unit, note_place, &p, NULL);
    return p.place == UINT64_MAX ? 0 : p.place;
}

/* Returns where in the source the next unit reads. */
static uint64_t place_of(tsr_file_sequence *sequence)
{
    if (!sequence->placed)
        sequence->place = find_place(sequence);
    /* Other sequences also take units of amaxes. */
    sequence->placed = sequence->next_step >= sequence->end_step || !wants_amax(sequence);
    return sequence->place;
}

/* ---- units ---- */

static tsr_schedule take_amax(tsr_run *r, tsr_work *w)
{
    w->amax = tsr_run_next_amax(r, &w->index, &w->unit);
    if (!w->amax)
        return TSR_UNIT_NOT_READY;
    r->amaxes[w->index].taken++;
    return TSR_UNIT_TAKEN;
}

/* Takes a unit of the next step. Returns false for an empty tensor, which has no units and counts as done. */
static bool take_next(tsr_file_sequence *sequence, tsr_work *w)
{
    tsr_run *const r = sequence->run;
    const size_t index = sequence->next_step;
    const uint64_t units = r->steps[index]->units;
    w->amax = false;
    w->index = index;
    w->unit = sequence->next_unit++;
    sequence->placed = false;
    if (sequence->next_unit >= units) {
        sequence->next_step++;
        sequence->next_unit = 0;
    }
    if (units > 0)
        return true;
    tsr_run_count_step(r, index);
    return false;
}

/* Returns true if the next file must wait until files were committed. Files that are sent wait on the disk, which needs
 * little space if few are open. Only the committer is waited for, when it has a file: its work always ends. */
static bool must_wait(tsr_run *r)
{
    bool over;
    if (r->n_open >= MOST_OPEN_FILES + r->n_sequences)
        return true;
    return r->uploads != NULL && r->n_open >= TSR_FILES_IN_SPOOL + r->n_sequences &&
           (r->committing || tsr_schedule_commit(r, &over) != NULL);
}

/* Takes the next unit of a sequence. While its step waits for an amax, the unit is one of an amax. */
static tsr_schedule take_unit(tsr_file_sequence *sequence, tsr_work *w)
{
    tsr_run *const r = sequence->run;
    tsr_err err = {0};
    tsr_status status = TSR_OK;
    w->run = r;
    while (status == TSR_OK && r->failure.status == TSR_OK && find_step(sequence)) {
        const size_t file = r->plan->steps[sequence->next_step].file;
        if (tsr_is_cancelled(r->pool->options->cancel)) {
            status = tsr_fail(&err, TSR_E_CANCELLED, "interrupted");
            continue;
        }
        if (wants_amax(sequence))
            return take_amax(r, w);
        if (r->files[file].phase == TSR_FILE_WAITING) {
            if (must_wait(r))
                return TSR_UNIT_NOT_READY;
            status = tsr_run_open_file(r, file, &err);
        }
        if (status == TSR_OK && r->steps[sequence->next_step] == NULL)
            status = tsr_run_begin_step(r, sequence->next_step, &err);
        if (status == TSR_OK && take_next(sequence, w))
            return TSR_UNIT_TAKEN;
    }
    /* Record the failure before the lock is released: no other worker may take a unit of a step that has only partly
     * begun. */
    if (status != TSR_OK)
        tsr_run_note_failure(r, status, &err);
    return TSR_NO_UNIT_LEFT;
}

/* Advances to the next sequence of all runs of this phase; NULL: starts with the first. Returns false at the end. */
static bool next_sequence(const tsr_pool *pool, tsr_file_sequence **sequence)
{
    const tsr_run *r = *sequence == NULL ? pool->runs : (*sequence)->run;
    size_t k = *sequence == NULL ? 0 : (size_t)(*sequence - r->sequences) + 1;
    for (; r < pool->runs + pool->n_runs; r++, k = 0) {
        if (r->present && k < r->n_sequences) {
            *sequence = &r->sequences[k];
            return true;
        }
    }
    return false;
}

/* Returns the sequence with the lowest source position, of those that may have a unit ready. NULL: none. */
static tsr_file_sequence *furthest_behind(const tsr_pool *pool)
{
    tsr_file_sequence *found = NULL, *sequence = NULL;
    uint64_t least = UINT64_MAX;
    while (next_sequence(pool, &sequence)) {
        if (sequence->waiting)
            continue;
        const uint64_t place = pool->shared == NULL ? 0 : place_of(sequence);
        if (found == NULL || place < least) {
            found = sequence;
            least = place;
        }
    }
    return found;
}

bool tsr_schedule_unit(tsr_pool *pool, tsr_work *w, bool wait)
{
    bool taken = false;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        bool waits = false;
        tsr_file_sequence *sequence = NULL;
        while (next_sequence(pool, &sequence))
            sequence->waiting = false;
        while (!taken && (sequence = furthest_behind(pool)) != NULL) {
            const tsr_schedule result = take_unit(sequence, w);
            taken = result == TSR_UNIT_TAKEN;
            sequence->waiting = !taken;
            waits = waits || result == TSR_UNIT_NOT_READY;
        }
        if (taken || !waits || !wait)
            break;
        pthread_cond_wait(&pool->changed, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return taken;
}

/* ---- commits ---- */

tsr_file_sequence *tsr_schedule_commit(tsr_run *r, bool *over)
{
    *over = true;
    for (size_t k = 0; k < r->n_sequences; k++) {
        tsr_file_sequence *const sequence = &r->sequences[k];
        while (sequence->next_file < sequence->end_file && sequence->next_file < r->claimed &&
               !r->files[sequence->next_file].mine)
            sequence->next_file++;
        if (sequence->next_file == sequence->end_file)
            continue;
        *over = false;
        if (sequence->next_file >= r->claimed)
            continue;
        const bool empty = r->plan->files[sequence->next_file].n_steps == 0 && r->failure.status == TSR_OK;
        if (empty || r->files[sequence->next_file].phase == TSR_FILE_WHOLE)
            return sequence;
    }
    return NULL;
}
