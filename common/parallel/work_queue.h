/* Runs a job in parts on threads: each free thread takes the next part in order. */
#pragma once

#include "common/parallel/threads.h"

#include <stddef.h>

/* A part, identified by the job's own numbers. */
typedef struct tsr_job_part {
    uint64_t item, number;
} tsr_job_part;

typedef struct tsr_work_queue {
    void *job;
    size_t result_bytes;            /* size of a part's result, a struct without pointers */
    const tsr_run_options *options; /* only `cancel` and `progress` are used here */
    tsr_progress *progress;         /* progress of the job, which `take` and `add` change */
    /* Takes the next part. Leaves *taken false if there is none. */
    tsr_status (*take)(void *job, tsr_job_part *part, bool *taken, tsr_err *err);
    /* Adds the result of a part to the job. One call of take or add runs at a time. */
    void (*add)(void *job, const tsr_job_part *part, const void *result);
    /* Allocates the state of a thread. Returns NULL when out of memory. */
    void *(*begin)(void *job);
    void (*end)(void *worker);
    /* Computes a part into *result, which is zeroed. */
    tsr_status (*make)(void *job, void *worker, const tsr_job_part *part, void *result, tsr_err *err);
} tsr_work_queue;

/* Runs the job on `threads` threads. The first failure ends it. TSR_E_CANCELLED: stopped by *options->cancel. */
tsr_status tsr_work_queue_run(const tsr_work_queue *job, unsigned threads, tsr_err *err);
