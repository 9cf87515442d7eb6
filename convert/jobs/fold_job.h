/* The options of `tessera fold` and the plan that follows from them. */
#pragma once

#include "convert/jobs/job_source.h"
#include "convert/plan/plan.h"
#include "convert/search/fold_search.h"

/* The options, and the inputs that stay open as long as the plan. Must not move once there is a plan. */
typedef struct tsr_fold_job {
    const char *scheme;     /* as in a rules file: "int4-weight-only --group-size 64" */
    const char *importance; /* path of the file */

    tsr_checkpoint *checkpoint;
    const tsr_checkpoint *sources[1]; /* the same */
    tsr_importance weights;
    tsr_fold_sets sets;
    tsr_fold_search search;
    tsr_fold_gain gain; /* after the run; sets 0: the output was complete already */
    tsr_arena arena;
} tsr_fold_job;

/* Appends the option table entries that fill *job, which must not move. */
void tsr_fold_job_options(tsr_fold_job *job, tsr_option *options);

/* Opens the source, finds the channels that can be scaled, and makes the plan; the engine searches the scales before
 * the first unit. *job must outlive the plan. */
tsr_status tsr_fold_job_plan(tsr_fold_job *job, const tsr_job_source *from, tsr_plan *plan, tsr_err *err);

void tsr_fold_job_free(tsr_fold_job *job);
