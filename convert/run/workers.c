/* Runs the threads that execute units and commit files. */
#include "convert/run/workers.h"

#include "common/checked.h"
#include "convert/run/amax_pass.h"
#include "convert/run/output_files.h"
#include "convert/run/scheduler.h"
#include "convert/run/units.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { LARGE_PAGE = 2 << 20 };

/* Fails all runs, because memory or another resource of the process is exhausted. */
static void fail_runs(tsr_pool *pool, const tsr_err *err)
{
    for (size_t i = 0; i < pool->n_runs; i++) {
        if (pool->runs[i].present)
            tsr_run_fail(&pool->runs[i], TSR_E_NOMEM, err);
    }
}

static void fail_all(tsr_pool *pool, const char *what, uint64_t bytes)
{
    tsr_err err = {0};
    (void)tsr_fail(&err, TSR_E_NOMEM, what, U64(bytes));
    fail_runs(pool, &err);
}

/* Fails all runs because no thread could start; errno has the reason. */
static void fail_for_threads(tsr_pool *pool)
{
    tsr_err err = {0};
    (void)tsr_fail_errno(&err, "cannot start one of %llu threads", U64(pool->workers));
    fail_runs(pool, &err);
}

/* A worker and its units in progress, in the order in which it took them. */
typedef struct worker {
    tsr_pool *pool;
    tsr_io *io;
    char *memory;
    tsr_task *tasks;               /* [pool->depth], a ring */
    unsigned first, n, n_computed; /* units in progress: tasks[first] is the oldest; computed ones come first */
} worker;

static tsr_task *task_at(worker *w, unsigned i)
{
    return &w->tasks[(w->first + i) % w->pool->depth];
}

static uint64_t task_bytes(const tsr_pool *pool)
{
    return tsr_round_up(pool->unit_bytes + 64, tsr_io_page());
}

/* Allocates memory in huge pages if possible, so that computing on it and reading into it need fewer address
 * translations. */
static char *worker_memory(uint64_t bytes)
{
    const uint64_t align = bytes < LARGE_PAGE ? tsr_io_page() : LARGE_PAGE;
    char *const memory = aligned_alloc(align, tsr_round_up(bytes, align));
    if (memory != NULL && align == LARGE_PAGE)
        (void)madvise(memory, bytes - bytes % LARGE_PAGE, MADV_HUGEPAGE);
    return memory;
}

static bool begin_worker(worker *w, tsr_pool *pool, unsigned index)
{
    const uint64_t bytes = pool->depth * task_bytes(pool);
    tsr_numa_bind(&pool->numa, index, pool->workers); /* called before its memory is allocated */
    *w = (worker){.pool = pool, .memory = worker_memory(bytes), .tasks = calloc(pool->depth, sizeof *w->tasks)};
    w->io = w->memory == NULL ? NULL : tsr_io_begin(pool->depth > 1, w->memory, bytes);
    if (w->io != NULL && w->tasks != NULL)
        return true;
    fail_all(pool, "out of memory for a worker's %llu bytes", bytes);
    return false;
}

static void end_worker(worker *w)
{
    const bool broken = w->io != NULL && tsr_io_is_broken(w->io);
    tsr_io_end(w->io); /* called before its memory is freed */
    if (broken)
        fail_all(w->pool, "io_uring did not report the result of %llu requests (--io buffered does not use it)", w->n);
    else
        free(w->memory);
    free(w->tasks);
}

/* Takes a unit and begins to read its input. Returns false if none is ready. A worker waits for a unit only if it has
 * none in progress, because others may wait for those. */
static bool begin_task(worker *w)
{
    tsr_task *const t = task_at(w, w->n);
    if (!tsr_schedule_unit(w->pool, &t->work, w->n == 0))
        return false;
    t->io = w->io;
    t->memory = w->memory + (uint64_t)(t - w->tasks) * task_bytes(w->pool);
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
        (void)!tsr_io_wait(w->io, &t->batch, &err); /* its memory is about to be reused */
    if (t->status != TSR_OK)
        tsr_run_fail(t->work.run, t->status, &t->err);
    w->first = (w->first + 1) % w->pool->depth;
    w->n--;
    w->n_computed--;
}

/* Thread function of a worker: executes units until none is left or all runs have failed. `argument` is the pool. While
 * a unit is computed, the next is read and the last written. */
static void *work(void *argument)
{
    tsr_pool *const pool = argument;
    const unsigned index = atomic_fetch_add(&pool->started, 1);
    worker w;
    for (bool more = begin_worker(&w, pool, index); more;) {
        while (w.n < pool->depth && w.n - w.n_computed < 2 && begin_task(&w))
            continue;
        more = w.n > 0 && !tsr_io_is_broken(w.io);
        if (more && w.n_computed < w.n)
            compute_task(&w);
        if (more && (w.n == pool->depth || w.n_computed == w.n))
            end_task(&w);
    }
    end_worker(&w);
    return NULL;
}

/* Thread function of a committer: commits files of a run in the order of their sequences. `argument` is the run. */
static void *commit_files(void *argument)
{
    tsr_run *const r = argument;
    tsr_err err = {0};
    tsr_status status = TSR_OK;
    bool over = false;
    pthread_mutex_lock(&r->pool->lock);
    while (status == TSR_OK && !over) {
        tsr_file_sequence *const sequence = tsr_schedule_commit(r, &over);
        if (sequence == NULL) {
            /* After a failure, complete files are still committed; no further ones become complete. */
            over = over || r->failure.status != TSR_OK;
            if (!over)
                pthread_cond_wait(&r->pool->changed, &r->pool->lock);
            continue;
        }
        const size_t file = sequence->next_file++;
        if (r->plan->files[file].n_steps == 0)
            status = tsr_run_open_file(r, file, &err);
        r->committing = true;
        pthread_mutex_unlock(&r->pool->lock);
        if (status == TSR_OK)
            status = tsr_run_commit_file(r, file, &err);
        pthread_mutex_lock(&r->pool->lock);
        r->committing = false;
        if (status != TSR_OK) {
            tsr_run_note_failure(r, status, &err);
            continue;
        }
        r->files[file].phase = TSR_FILE_DONE;
        r->n_open--;
        pthread_cond_broadcast(&r->pool->changed);
    }
    pthread_mutex_unlock(&r->pool->lock);
    return NULL;
}

/* Returns the bytes that all runs have sent. */
static uint64_t sent_bytes(const tsr_pool *pool)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < pool->n_runs; i++)
        bytes += pool->runs[i].uploads == NULL ? 0 : tsr_uploads_sent(pool->runs[i].uploads);
    return bytes;
}

/* Reports the progress of all runs together. */
static void report_progress(void *argument)
{
    tsr_pool *const pool = argument;
    tsr_progress p = {.phase = pool->phase, .items = "tensors"};
    if (pool->options->progress == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    for (size_t i = 0; i < pool->n_runs; i++) {
        const tsr_run *const r = &pool->runs[i];
        if (!r->present)
            continue;
        p.bytes_done += r->bytes_read + r->bytes_elsewhere;
        p.bytes_total += r->bytes_total;
        p.items_done += r->steps_done;
        p.items_total += r->steps_total;
        if (pool->n_runs == 1 && r->plan->counted != NULL)
            p.items = r->plan->counted;
        p.sends = p.sends || r->uploads != NULL;
    }
    pthread_mutex_unlock(&pool->lock);
    p.bytes_sent = sent_bytes(pool) - pool->sent_before;
    p.seconds = tsr_seconds_since(&pool->began);
    pool->options->progress(&p, pool->options->progress_data);
}

/* Waits for a committer and reports progress, because the last files may take long to send. */
static void join(pthread_t thread, void *pool)
{
    struct timespec until;
    do {
        report_progress(pool);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
    } while (pthread_timedjoin_np(thread, NULL, &until) == ETIMEDOUT);
}

void tsr_workers_run(tsr_pool *pool, const char *phase)
{
    pthread_t *const committers = calloc(pool->n_runs, sizeof *committers);
    size_t n = 0;
    pool->phase = phase;
    pool->sent_before = sent_bytes(pool);
    atomic_store(&pool->started, 0);
    if (pool->workers > 1 && pool->numa.n == 0)
        tsr_numa_find(&pool->numa);
    clock_gettime(CLOCK_MONOTONIC, &pool->began);
    for (size_t i = 0; committers != NULL && i < pool->n_runs; i++) {
        if (!pool->runs[i].present)
            continue;
        tsr_err err = {0};
        errno = pthread_create(&committers[n], NULL, commit_files, &pool->runs[i]);
        if (errno == 0) {
            n++;
            continue;
        }
        (void)tsr_fail_errno(&err, "cannot start a thread");
        tsr_run_fail(&pool->runs[i], TSR_E_NOMEM, &err);
    }
    if (committers == NULL)
        fail_all(pool, "out of memory for %llu threads", pool->n_runs);
    else if (tsr_run_threads(pool->workers, work, report_progress, pool) == 0)
        fail_for_threads(pool);
    for (size_t i = 0; i < n; i++)
        join(committers[i], pool);
    report_progress(pool);
    free(committers);
}
