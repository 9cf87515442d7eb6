/* Several runs, and several lanes of a run, at a time, by the same workers.
 *
 * Each lane takes its units in its plan's order. Among lanes that read the same source, the one that is furthest behind in it
 * has the next turn, so that all of them go through the source side by side, and what is read for one is there for the others.
 * A lane that waits for something of its own (an amax, a file to be committed) lets others go ahead. */
#include "convert/engine/engine_run.h"

#include "common/checked.h"

#include <stdlib.h>
#include <time.h>

/* The first lane, or the one behind *lane; false: there is none. */
static bool next_lane(const tsr_crew *c, tsr_lane **lane)
{
    const tsr_run *r = *lane == NULL ? c->runs : (*lane)->run;
    size_t k = *lane == NULL ? 0 : (size_t)(*lane - r->lanes) + 1;
    for (; r < c->runs + c->n_runs; r++, k = 0) {
        if (r->present && k < r->n_lanes) {
            *lane = &r->lanes[k];
            return true;
        }
    }
    return false;
}

/* The lane whose turn it is, of those that do not wait; NULL: none. */
static tsr_lane *furthest_behind(const tsr_crew *c)
{
    tsr_lane *found = NULL, *lane = NULL;
    uint64_t least = UINT64_MAX;
    while (next_lane(c, &lane)) {
        if (lane->waiting)
            continue;
        const uint64_t place = c->shared == NULL ? 0 : tsr_lane_place(lane);
        if (found == NULL || place < least) {
            found = lane;
            least = place;
        }
    }
    return found;
}

/* A unit of whichever lane; false when there is none left in any. */
static bool take_work(tsr_crew *c, tsr_work *w)
{
    bool taken = false;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        bool waits = false;
        tsr_lane *lane = NULL;
        while (next_lane(c, &lane))
            lane->waiting = false;
        while (!taken && (lane = furthest_behind(c)) != NULL) {
            const tsr_turn turn = tsr_lane_take_unit(lane, w);
            taken = turn == TSR_TURN_TAKEN;
            lane->waiting = !taken;
            waits = waits || turn == TSR_TURN_WAITS;
        }
        if (taken || !waits)
            break;
        pthread_cond_wait(&c->changed, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return taken;
}

static void fail_all(tsr_crew *c, const char *what, uint64_t bytes)
{
    tsr_err err = {{0}};
    const tsr_status status = tsr_fail(&err, TSR_E_NOMEM, what, U64(bytes));
    for (size_t i = 0; i < c->n_runs; i++) {
        if (c->runs[i].present)
            tsr_run_fail(&c->runs[i], status, &err);
    }
}

/* A worker's thread: carries out units until there is none left or all runs have failed. `argument` is the crew. */
static void *work(void *argument)
{
    tsr_crew *const c = argument;
    char *const memory = aligned_alloc(64, tsr_round_up(c->unit_bytes + 64, 64));
    tsr_work w = {0};
    if (memory == NULL)
        fail_all(c, "out of memory for a worker's %llu bytes", c->unit_bytes);
    while (memory != NULL && take_work(c, &w)) {
        tsr_err err = {{0}};
        const tsr_status status = w.amax ? tsr_run_do_amax(w.run, w.index, w.unit, memory, &err)
                                         : tsr_run_do_unit(w.run, w.index, w.unit, memory, &err);
        if (status != TSR_OK)
            tsr_run_fail(w.run, status, &err);
    }
    free(memory);
    return NULL;
}

/* The sums of all runs. */
static void report_progress(void *argument)
{
    tsr_crew *const c = argument;
    tsr_progress p = {.phase = c->phase, .items = "tensors"};
    if (c->options->progress == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->n_runs; i++) {
        const tsr_run *const r = &c->runs[i];
        if (!r->present)
            continue;
        p.bytes_done += r->bytes_read;
        p.bytes_total += r->bytes_total;
        p.items_done += r->steps_done;
        p.items_total += r->steps_total;
        if (c->n_runs == 1 && r->plan->counted != NULL)
            p.items = r->plan->counted;
    }
    pthread_mutex_unlock(&c->lock);
    p.seconds = tsr_seconds_since(&c->began);
    c->options->progress(&p, c->options->progress_data);
}

void tsr_crew_work(tsr_crew *c, const char *phase)
{
    pthread_t *const committers = calloc(c->n_runs, sizeof *committers);
    size_t n = 0;
    c->phase = phase;
    clock_gettime(CLOCK_MONOTONIC, &c->began);
    for (size_t i = 0; committers != NULL && i < c->n_runs; i++) {
        if (!c->runs[i].present)
            continue;
        if (pthread_create(&committers[n], NULL, tsr_run_commit_files, &c->runs[i]) == 0)
            n++;
        else
            tsr_run_fail(&c->runs[i], TSR_E_NOMEM, &(tsr_err){"cannot start a thread"});
    }
    if (committers == NULL)
        fail_all(c, "out of memory for %llu threads", c->n_runs);
    else if (tsr_run_threads(c->workers, work, report_progress, c) == 0)
        fail_all(c, "cannot start one of %llu threads", c->workers);
    for (size_t i = 0; i < n; i++)
        pthread_join(committers[i], NULL);
    report_progress(c);
    free(committers);
}
