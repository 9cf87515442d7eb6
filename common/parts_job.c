/* Threads that take parts, and have some of them made elsewhere. */
#include "common/parts_job.h"

#include "common/first_failure.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct run {
    const tsr_parts_job *job;
    tsr_ranks *ranks;
    unsigned threads; /* of this process */
    atomic_uint started;
    struct timespec began;
    pthread_mutex_t lock; /* guards the rest, and the job */
    tsr_first_failure failure;
} run;

static bool take(run *r, tsr_job_part *part)
{
    tsr_err err = {{0}};
    tsr_status status = TSR_OK;
    bool taken = false;
    pthread_mutex_lock(&r->lock);
    if (tsr_is_cancelled(r->job->options->cancel))
        status = tsr_fail(&err, TSR_E_CANCELLED, "interrupted");
    if (status == TSR_OK && r->failure.status == TSR_OK)
        status = r->job->take(r->job->job, part, &taken, &err);
    /* Before the lock is released: what was only half begun is for nobody else to take. */
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

static void work_here(run *r)
{
    void *const hand = r->job->begin(r->job->job), *const result = malloc(r->job->result_bytes);
    tsr_job_part part;
    tsr_err err = {{0}};
    tsr_status status = hand == NULL || result == NULL ? tsr_out_of_memory(&err, "for a worker") : TSR_OK;
    while (status == TSR_OK && take(r, &part)) {
        memset(result, 0, r->job->result_bytes);
        status = r->job->make(hand, &part, result, &err);
        if (status == TSR_OK)
            add(r, &part, result);
    }
    tsr_note_failure_locking(&r->failure, &r->lock, status, &err);
    if (hand != NULL)
        r->job->end(hand);
    free(result);
}

/* Has parts made by a thread of another rank. */
static void work_elsewhere(run *r, unsigned number)
{
    tsr_remote remote = tsr_remote_of(r->ranks, number);
    tsr_job_part part;
    tsr_err err = {{0}};
    tsr_status status = TSR_OK;
    while (status == TSR_OK && take(r, &part)) {
        const tsr_request q = {.index = part.item, .part = part.number};
        status = tsr_remote_ask(&remote, &q, &err);
        if (status == TSR_OK && remote.bytes != r->job->result_bytes)
            status = tsr_fail(&err, TSR_E_MISMATCH, "rank %u is of another version of Tessera", remote.rank);
        if (status == TSR_OK)
            add(r, &part, remote.answer);
    }
    tsr_note_failure_locking(&r->failure, &r->lock, status, &err);
    tsr_remote_free(&remote);
}

static void *work(void *argument)
{
    run *const r = argument;
    const unsigned index = atomic_fetch_add(&r->started, 1);
    if (index < r->threads)
        work_here(r);
    else
        work_elsewhere(r, index - r->threads);
    return NULL;
}

static void tell_progress(void *argument)
{
    run *const r = argument;
    pthread_mutex_lock(&r->lock);
    const tsr_progress now = *r->job->progress;
    pthread_mutex_unlock(&r->lock);
    tsr_tell_progress(r->job->options, &now, &r->began);
}

/* ---- in another rank ---- */

typedef struct served {
    const tsr_parts_job *job;
    void *hand, *result;
} served;

static void end_served(void *argument)
{
    served *const s = argument;
    if (s->hand != NULL)
        s->job->end(s->hand);
    free(s->result);
    free(s);
}

static void *begin_served(void *job)
{
    const tsr_parts_job *const j = job;
    served *const s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    *s = (served){.job = j, .hand = j->begin(j->job), .result = malloc(j->result_bytes)};
    if (s->hand != NULL && s->result != NULL)
        return s;
    end_served(s);
    return NULL;
}

static tsr_status make_served(void *argument, const tsr_request *q, tsr_text *answer, tsr_err *err)
{
    const served *const s = argument;
    const tsr_job_part part = {q->index, q->part};
    memset(s->result, 0, s->job->result_bytes);
    TSR_TRY(s->job->make(s->hand, &part, s->result, err));
    tsr_text_append(answer, s->result, s->job->result_bytes);
    return TSR_OK;
}

tsr_status tsr_parts_job_run(const tsr_parts_job *job, unsigned threads, tsr_ranks *ranks, uint64_t fingerprint,
                             tsr_err *err)
{
    run r = {.job = job, .ranks = ranks, .threads = threads, .lock = PTHREAD_MUTEX_INITIALIZER};
    tsr_parts_job mine = *job;
    const tsr_server server = {.context = &mine, .begin = begin_served, .answer = make_served, .end = end_served};
    if (ranks != NULL)
        TSR_TRY(tsr_ranks_agree(ranks, TSR_OK, threads, fingerprint, err));
    if (tsr_ranks_mine(ranks) > 0)
        return tsr_ranks_serve(ranks, &server, err);
    clock_gettime(CLOCK_MONOTONIC, &r.began);
    if (tsr_run_threads(threads + tsr_ranks_others(ranks), work, tell_progress, &r) == 0) {
        tsr_err why = {{0}};
        (void)tsr_fail_errno(&why, "cannot start a thread");
        tsr_note_failure(&r.failure, TSR_E_NOMEM, &why);
    }
    TSR_TRY(tsr_return_failure(&r.failure, err));
    tell_progress(&r); /* that all is done, even if it was done before anybody was told */
    return TSR_OK;
}
