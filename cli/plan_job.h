/* A command that makes a checkpoint, in three parts: the command line is read, a plan is made of headers, the plan is carried
 * out. `tessera quantize` and `tessera convert` do one after the other; `tessera batch` has all of its jobs read and planned
 * before it carries out the first one, and carries out several together. */
#ifndef TSR_CLI_PLAN_JOB_H
#define TSR_CLI_PLAN_JOB_H

#include "cli/run_plan.h"

typedef struct tsr_plan_job {
    tsr_plan_run run;
    tsr_plan plan; /* empty until it is made */
    bool idle;     /* help was asked for, and is given: there is nothing to plan */
    void *own;     /* the command's own: what it was told, and what stays open while the plan lives */
    tsr_status (*make)(struct tsr_plan_job *job, tsr_err *err);
    void (*close)(void *own);
} tsr_plan_job;

/* Reads a command line, and checks all that can be known without a look into the source. The words outlive the job. Whether it
 * fails or not, the job has to be closed. */
typedef tsr_status tsr_plan_reader(tsr_plan_job *job, int argc, char **argv, tsr_err *err);
tsr_plan_reader tsr_quantize_read;
tsr_plan_reader tsr_convert_read;

/* Opens what the job reads, and makes its plan. */
tsr_status tsr_plan_job_make(tsr_plan_job *job, tsr_err *err) TSR_WARN_UNUSED;

/* Frees the plan, closes what it reads, and forgets the command line. A zeroed job may be closed. */
void tsr_plan_job_close(tsr_plan_job *job);

/* All three parts. Returns the exit code. */
int tsr_plan_command(const char *command, tsr_plan_reader *read, int argc, char **argv);

#endif
