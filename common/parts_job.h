/* A job in parts. Whichever thread is free has the next part, in the order of the job: a thread of this process or, with ranks, of
 * another one. What a part comes to is a struct of a fixed size without pointers, which is added to the job where it is run. */
#ifndef TSR_COMMON_PARTS_JOB_H
#define TSR_COMMON_PARTS_JOB_H

#include "common/ranks.h"
#include "common/threads.h"

/* What a part is, in the job's own numbers. */
typedef struct tsr_job_part {
    uint64_t item, number;
} tsr_job_part;

typedef struct tsr_parts_job {
    void *job;
    size_t result_bytes;
    const tsr_run_options *options; /* threads and memory are the caller's to weigh */
    tsr_progress *progress;         /* the job's, as far as it has come */
    /* The next part; *taken is left as it is, false, when there is none. */
    tsr_status (*take)(void *job, tsr_job_part *part, bool *taken, tsr_err *err);
    /* Adds what a part came to. One of take and add runs at a time. */
    void (*add)(void *job, const tsr_job_part *part, const void *result);
    /* What a thread works with; NULL: out of memory. */
    void *(*begin)(void *job);
    void (*end)(void *hand);
    /* Carries out a part, into *result, which is zeroed. In another rank the job is one that was got ready there in the same way. */
    tsr_status (*make)(void *hand, const tsr_job_part *part, void *result, tsr_err *err);
} tsr_parts_job;

/* Runs the job with so many threads, and those of other ranks; `fingerprint` is for tsr_ranks_agree. In a rank but 0 it works for
 * rank 0, and adds nothing here. The first failure ends it; TSR_E_CANCELLED: stopped by *options->cancel. */
tsr_status tsr_parts_job_run(const tsr_parts_job *job, unsigned threads, tsr_ranks *ranks, uint64_t fingerprint,
                             tsr_err *err) TSR_WARN_UNUSED;

#endif
