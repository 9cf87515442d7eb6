/* Declares the options of `tessera convert` and the plan that follows from them. */
#pragma once

#include "convert/jobs/convert_inputs.h"

/* The options, and the inputs that stay open as long as the plan. Must not move once there is a plan. */
typedef struct tsr_convert_job {
    int to;
    const char *source_block, *block, *against, *config;
    int dtype, scale_fmt, scales, dialect;
    uint64_t mp, tp;
    bool keep_mtp, merge, fold, drop_kv_b;
    int consumer, weights;
    uint64_t level;
    bool shuffle;
    int from, arch, bits, away, scale_dtype, divisor; /* index of the word; divisor: -1: default of the target */
    const char *producer;
    uint64_t group_size; /* UINT64_MAX: default of the target */
    const char *activations, *input_scale, *importance;
    int mx_scale, experts; /* mx_scale -1: default of the dialect; experts -1: split stacks of codes */
    bool lossy, zero_points, no_card;
    tsr_list include, exclude;
    const char *quantizing; /* the first given option that only applies to quantizing */
    tsr_convert_inputs in;
    tsr_arena words; /* for the manifest */
} tsr_convert_job;

/* Returns the default options. */
tsr_convert_job tsr_convert_job_defaults(void);

/* Appends the option table entries that fill *job, which must not move. */
void tsr_convert_job_options(tsr_convert_job *job, tsr_option *options);

/* Checks the options after parsing. TSR_E_USAGE: they contradict each other. `given` has the bits of the options that
 * are present. */
tsr_status tsr_convert_job_check(tsr_convert_job *job, const tsr_option *options, uint64_t given, tsr_err *err);

/* "converting", "archiving", "restoring". */
const char *tsr_convert_job_verb(const tsr_convert_job *job);

/* Opens the inputs and makes the plan. *job must outlive the plan, and the option words must outlive both. */
tsr_status tsr_convert_job_plan(tsr_convert_job *job, const tsr_job_source *from, tsr_plan *plan, tsr_err *err);

void tsr_convert_job_free(tsr_convert_job *job);
