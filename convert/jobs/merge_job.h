/* The options of `tessera merge` and the plan that follows from them. */
#pragma once

#include "common/options.h"
#include "convert/jobs/job_source.h"
#include "convert/plans/merge/merge_plan.h"

/* The options, and the inputs that stay open as long as the plan. Must not move once there is a plan. */
typedef struct tsr_merge_job {
    const char *adapters[TSR_MERGE_ADAPTERS]; /* directories of the adapters */
    double factors[TSR_MERGE_ADAPTERS];       /* factors of their updates */
    size_t n_adapters;
    const char *source_block;

    tsr_checkpoint *opened[1 + TSR_MERGE_ADAPTERS];        /* base and adapters */
    const tsr_checkpoint *sources[1 + TSR_MERGE_ADAPTERS]; /* the same */
    tsr_arena words;                                       /* paths, and words for the manifest */
} tsr_merge_job;

/* Appends the option table entries that fill *job, which must not move. */
void tsr_merge_job_options(tsr_merge_job *job, tsr_option *options);

/* Adds an adapter: "DIRECTORY", or "DIRECTORY=FACTOR". TSR_E_USAGE: there are too many, or the factor is 0. */
tsr_status tsr_merge_job_add(tsr_merge_job *job, const char *word, tsr_err *err);

/* Opens base and adapters, and makes the plan. *job must outlive the plan, and the option words must outlive both. */
tsr_status tsr_merge_job_plan(tsr_merge_job *job, const tsr_job_source *from, tsr_plan *plan, tsr_err *err);

void tsr_merge_job_free(tsr_merge_job *job);
