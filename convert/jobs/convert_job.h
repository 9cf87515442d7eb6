/* The options of `tessera convert`, and the plan that they lead to. */
#ifndef TSR_CONVERT_JOBS_CONVERT_JOB_H
#define TSR_CONVERT_JOBS_CONVERT_JOB_H

#include "convert/jobs/convert_inputs.h"

/* The options, and what stays open while the plan lives. It must not move once there is a plan. */
typedef struct tsr_convert_job {
    int to;
    const char *source_block, *block, *against, *config;
    int dtype, scale_fmt, scales, dialect;
    uint64_t mp, tp;
    bool keep_mtp, merge, fold, drop_kv_b;
    int consumer, weights;
    uint64_t level;
    bool shuffle;
    int from, arch, bits, away, scale_dtype, divisor; /* divisor: -1: as the target has it */
    const char *producer;
    uint64_t group_size; /* UINT64_MAX: as the target has it */
    const char *activations;
    int mx_scale, experts; /* -1: as the dialect has it; split, where a stack is codes */
    bool lossy, zero_points;
    tsr_list include, exclude;
    const char *quantizing; /* the first given option that only quantizing uses */
    tsr_convert_inputs in;
    tsr_arena words; /* for the manifest */
} tsr_convert_job;

/* Returns the options when none is given. */
tsr_convert_job tsr_convert_job_defaults(void);

/* Appends the entries that fill *job, which stays where it is, to a table of options. */
void tsr_convert_job_options(tsr_convert_job *job, tsr_option *options);

/* After parsing: TSR_E_USAGE for what means nothing together. `given`: which of the options were there. */
tsr_status tsr_convert_job_check(tsr_convert_job *job, const tsr_option *options, uint64_t given,
                                 tsr_err *err) TSR_WARN_UNUSED;

/* "converting", "archiving", "restoring". */
const char *tsr_convert_job_verb(const tsr_convert_job *job);

/* Opens the inputs, and makes the plan. *job outlives the plan, and the words of the options outlive both. */
tsr_status tsr_convert_job_plan(tsr_convert_job *job, const tsr_job_source *from, tsr_plan *plan,
                                tsr_err *err) TSR_WARN_UNUSED;

void tsr_convert_job_free(tsr_convert_job *job);

#endif
