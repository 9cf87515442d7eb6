/* Runs a job in parts on threads. */
#include "common/parallel/work_queue.h"

#include "common/parallel/first_failure.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct run {
    const tsr_work_queue *job;
    struct timespec began;
    pthread_mutex_t lock; /* guards the following members and the job */
    tsr_first_failure failure;
} run;

static bool take(run *r, tsr_job_part *part)
{
    tsr_err err = {0};
    tsr_status status = TSR_OK;
    bool taken = false;
    pthread_mutex_lock(&r->lock);
    if (tsr_is_cancelled(r->job->options->cancel))
        status = tsr_fail(&err, TSR_E_CANCELLED, "interrupted");
    if (status == TSR_OK && r->failure.status == TSR_OK)
        status = r->job->take(r->job->job, part, &taken, &err);
    /* Record the failure before the lock is released: no other thread may take a part of an item that has only partly
     * begun. */
    tsr_note_failure(&r->failure, status, &err);
    pthread_mutex_unlock(&r->lock);
    return taken && status == TSR_OK;
}

static void add(run *r, const tsr_job_part *part, const void *result)
{
    pthread_mutex_lock(&r->lock);
    r->job->add(r->job->job, part, result);
    pthread_mutex_unlock(&r->lock);
}

static void *work(void *argument)
{
    run *const r = argument;
    void *const worker = r->job->begin(r->job->job), *const result = malloc(r->job->result_bytes);
    tsr_job_part part;
    tsr_err err = {0};
    tsr_status status = worker == NULL || result == NULL ? tsr_out_of_memory(&err, "for a worker") : TSR_OK;
    while (status == TSR_OK && take(r, &part)) {
        memset(result, 0, r->job->result_bytes);
        status = r->job->make(r->job->job, worker, &part, result, &err);
        if (status == TSR_OK)
            add(r, &part, result);
    }
    tsr_note_failure_locking(&r->failure, &r->lock, status, &err);
    if (worker != NULL)
        r->job->end(worker);
    free(result);
    return NULL;
}

static void report_progress(void *argument)
{
    run *const r = argument;
    pthread_mutex_lock(&r->lock);
    const tsr_progress now = *r->job->progress;
    pthread_mutex_unlock(&r->lock);
    tsr_tell_progress(r->job->options, &now, &r->began);
}

tsr_status tsr_work_queue_run(const tsr_work_queue *job, unsigned threads, tsr_err *err)
{
    run r = {.job = job, .lock = PTHREAD_MUTEX_INITIALIZER};
    clock_gettime(CLOCK_MONOTONIC, &r.began);
    if (tsr_run_threads(threads, work, report_progress, &r) == 0) {
        tsr_err why = {0};
        (void)tsr_fail_errno(&why, "cannot start a thread");
        tsr_note_failure(&r.failure, TSR_E_NOMEM, &why);
    }
    TSR_TRY(tsr_return_failure(&r.failure, err));
    report_progress(&r); /* a short job may end before its first report */
    return TSR_OK;
}
