/* Several runs, and several lanes of a run, at a time, by the same workers. */
#include "convert/engine/engine_run.h"

#include "common/checked.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { LARGE_PAGE = 2 << 20 };

/* That memory, or what stands for it, ran out. */
static void tell_all(tsr_crew *c, const tsr_err *err)
{
    for (size_t i = 0; i < c->n_runs; i++) {
        if (c->runs[i].present)
            tsr_run_fail(&c->runs[i], TSR_E_NOMEM, err);
    }
}

static void fail_all(tsr_crew *c, const char *what, uint64_t bytes)
{
    tsr_err err = {{0}};
    (void)tsr_fail(&err, TSR_E_NOMEM, what, U64(bytes));
    tell_all(c, &err);
}

/* errno says why. */
static void fail_for_threads(tsr_crew *c)
{
    tsr_err err = {{0}};
    (void)tsr_fail_errno(&err, "cannot start one of %llu threads", U64(c->workers));
    tell_all(c, &err);
}

/* A worker: its units under way, in the order in which it took them. */
typedef struct worker {
    tsr_crew *crew;
    tsr_io *io;
    char *memory;
    tsr_task *tasks;               /* [crew->depth], used in turn */
    unsigned first, n, n_computed; /* of those under way: the oldest is tasks[first]; those computed come first */
} worker;

static tsr_task *task_at(worker *w, unsigned i)
{
    return &w->tasks[(w->first + i) % w->crew->depth];
}

static uint64_t task_bytes(const tsr_crew *c)
{
    return tsr_round_up(c->unit_bytes + 64, tsr_io_page());
}

/* In large pages where there are some: less to look up when it is computed on and when the system reads into it. */
static char *worker_memory(uint64_t bytes)
{
    const uint64_t align = bytes < LARGE_PAGE ? tsr_io_page() : LARGE_PAGE;
    char *const memory = aligned_alloc(align, tsr_round_up(bytes, align));
    if (memory != NULL && align == LARGE_PAGE)
        (void)madvise(memory, bytes - bytes % LARGE_PAGE, MADV_HUGEPAGE);
    return memory;
}

static bool begin_worker(worker *w, tsr_crew *c, unsigned index)
{
    const uint64_t bytes = c->depth * task_bytes(c);
    tsr_numa_bind(&c->numa, index, c->workers); /* before its memory is there */
    *w = (worker){.crew = c, .memory = worker_memory(bytes), .tasks = calloc(c->depth, sizeof *w->tasks)};
    w->io = w->memory == NULL ? NULL : tsr_io_begin(c->depth > 1, w->memory, bytes);
    if (w->io != NULL && w->tasks != NULL)
        return true;
    fail_all(c, "out of memory for a worker's %llu bytes", bytes);
    return false;
}

static void end_worker(worker *w)
{
    const bool broken = w->io != NULL && tsr_io_is_broken(w->io);
    tsr_io_end(w->io); /* before the memory that it reads to and writes from */
    if (broken)
        fail_all(w->crew, "io_uring did not say what became of %llu requests (--io buffered goes without)", w->n);
    else
        free(w->memory);
    free(w->tasks);
}

/* Takes a unit and has its input read; false: there is none to be had now. Only a worker that has nothing under way waits for
 * one: others may wait for what it has. */
static bool begin_task(worker *w)
{
    tsr_task *const t = task_at(w, w->n);
    if (!tsr_crew_take_work(w->crew, 0, &t->work, w->n == 0))
        return false;
    t->io = w->io;
    t->memory = w->memory + (uint64_t)(t - w->tasks) * task_bytes(w->crew);
    t->status = t->work.amax ? tsr_run_begin_amax(t, &t->err) : tsr_run_begin_unit(t, &t->err);
    tsr_io_submit(w->io);
    w->n++;
    return true;
}

static void compute_task(worker *w)
{
    tsr_task *const t = task_at(w, w->n_computed++);
    if (t->status == TSR_OK)
        t->status = t->work.amax ? tsr_run_compute_amax(t, &t->err) : tsr_run_compute_unit(t, &t->err);
    tsr_io_submit(w->io);
    if (t->status != TSR_OK)
        tsr_run_fail(t->work.run, t->status, &t->err);
}

static void end_task(worker *w)
{
    tsr_task *const t = task_at(w, 0);
    tsr_err err;
    if (t->status == TSR_OK && !t->work.amax)
        t->status = tsr_run_end_unit(t, &t->err);
    else
        (void)!tsr_io_wait(w->io, &t->batch, &err); /* its memory is used again */
    if (t->status != TSR_OK)
        tsr_run_fail(t->work.run, t->status, &t->err);
    w->first = (w->first + 1) % w->crew->depth;
    w->n--;
    w->n_computed--;
}

/* A thread that has units carried out by a thread of another rank. */
static void work_elsewhere(tsr_crew *c, unsigned index)
{
    tsr_remote remote = tsr_remote_of(c->ranks, index);
    tsr_work w = {0};
    while (tsr_crew_take_work(c, remote.rank, &w, true)) {
        tsr_err err = {{0}};
        const tsr_status status = tsr_remote_do(&remote, &w, &err);
        if (status != TSR_OK)
            tsr_run_fail(w.run, status, &err);
    }
    tsr_remote_free(&remote);
}

/* A worker's thread: carries out units until there is none left or all runs have failed. `argument` is the crew. While one is
 * computed, the next is read and the last written. */
static void *work(void *argument)
{
    tsr_crew *const c = argument;
    const unsigned index = atomic_fetch_add(&c->started, 1);
    worker w;
    if (index >= c->workers) {
        work_elsewhere(c, index - c->workers);
        return NULL;
    }
    for (bool more = begin_worker(&w, c, index); more;) {
        while (w.n < c->depth && w.n - w.n_computed < 2 && begin_task(&w))
            continue;
        more = w.n > 0 && !tsr_io_is_broken(w.io);
        if (more && w.n_computed < w.n)
            compute_task(&w);
        if (more && (w.n == c->depth || w.n_computed == w.n))
            end_task(&w);
    }
    end_worker(&w);
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
    atomic_store(&c->started, 0);
    if (c->workers > 1 && c->numa.n == 0)
        tsr_numa_find(&c->numa);
    clock_gettime(CLOCK_MONOTONIC, &c->began);
    for (size_t i = 0; committers != NULL && i < c->n_runs; i++) {
        if (!c->runs[i].present)
            continue;
        tsr_err err = {{0}};
        errno = pthread_create(&committers[n], NULL, tsr_run_commit_files, &c->runs[i]);
        if (errno == 0) {
            n++;
            continue;
        }
        (void)tsr_fail_errno(&err, "cannot start a thread");
        tsr_run_fail(&c->runs[i], TSR_E_NOMEM, &err);
    }
    if (committers == NULL)
        fail_all(c, "out of memory for %llu threads", c->n_runs);
    else if (tsr_run_threads(c->workers + tsr_ranks_others(c->ranks), work, report_progress, c) == 0)
        fail_for_threads(c);
    for (size_t i = 0; i < n; i++)
        pthread_join(committers[i], NULL);
    report_progress(c);
    free(committers);
}
