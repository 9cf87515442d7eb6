/* A command that makes a checkpoint: its options, its plan, and running the plan.
 *
 * `tessera quantize` and `tessera convert` share these functions. `tessera batch` plans all jobs before it runs the
 * first one, and runs several together. The job of such a command begins with a tsr_plan_job. */
#pragma once

#include "cli/command.h"
#include "cli/help/serve_hints.h"
#include "cli/io/loader_options.h"
#include "cli/io/shard_options.h"
#include "cli/show/quant_limits.h"
#include "convert/jobs/job_source.h"
#include "convert/jobs/scheme_options.h"
#include "convert/run/engine.h"

/* The common options of such commands. */
enum {
    TSR_PLAN_TAKES = TSR_TAKES_IGNORE_FILE | TSR_TAKES_THREADS | TSR_TAKES_MEMORY | TSR_TAKES_CPUMASK | TSR_TAKES_MPI |
                     TSR_TAKES_PROGRESS
};

typedef struct tsr_plan_job {
    /* Set by the command. */
    tsr_status (*make)(struct tsr_plan_job *job, tsr_err *err); /* opens the inputs and makes `plan` */
    const char *verb;                                           /* word for progress lines: "quantizing" */
    const char *scheme; /* the scheme of all quantized weights; NULL: several, or unknown */
    tsr_scheme_sqnr sqnr;

    /* Set from the command line. */
    tsr_job_source from;
    const char *dst;     /* the output directory; of an output of s3://, the spool */
    const char *address; /* where the output is sent; NULL: it stays in `dst` */
    const char *spool;   /* as given */
    int io;              /* a tsr_io_mode */
    int link;            /* a tsr_link_mode */
    bool dry_run, force;
    tsr_quant_limits limits;
    tsr_target_options target; /* only of `tessera quantize` */
    tsr_shard_run shards;
    struct tsr_proof *proof; /* cli/proof.h; NULL: the command has none */

    /* Set by the run. */
    tsr_plan plan;
    bool executed; /* the plan was run, and `result` is set */
    tsr_engine_result result;
    tsr_result judged; /* checks and findings: tensors beyond a limit */
    tsr_serve_hints serving;
} tsr_plan_job;

/* ---- functions of a tsr_command ---- */

/* Returns the defaults of this machine. */
tsr_plan_job tsr_plan_job_defaults(tsr_status (*make)(tsr_plan_job *job, tsr_err *err), const char *verb);

/* Append the options that such commands share: how it runs, and with that, limits of errors. */
void tsr_plan_job_run_options(tsr_plan_job *job, tsr_option *options);
void tsr_plan_job_options(tsr_plan_job *job, tsr_option *options);

/* Checks that SRC and DST are given, and that numbers are valid. */
tsr_status tsr_plan_job_check(tsr_command_context *context, tsr_err *err);

/* Returns the output as the user knows it: its address or its directory. */
const char *tsr_plan_job_output(const tsr_plan_job *job);

/* Returns the spool of an address in `arena`: NAME.spool, after the last part of the address; NULL: no memory. */
const char *tsr_plan_job_spool(const char *address, tsr_arena *arena);

/* Returns an address without the last '/', in `arena`; NULL: no memory. */
const char *tsr_plan_job_address(const char *address, tsr_arena *arena);

/* Lists DST and `n` sources (NULL: none). */
void tsr_plan_job_paths(const tsr_command_context *context, const char *const *sources, size_t n, tsr_io_paths *paths);

tsr_status tsr_plan_job_open(tsr_command_context *context, tsr_err *err);
tsr_status tsr_plan_job_run(tsr_command_context *context, tsr_terminal *terminal, tsr_err *err);
tsr_status tsr_plan_job_conclude(tsr_command_context *context, tsr_err *err);
int tsr_plan_job_exit_code(const tsr_command_context *context);

/* Frees the plan and its result. The command closes the inputs of the plan afterwards. */
void tsr_plan_job_close(tsr_plan_job *job);

/* The fields of tsr_command that all such commands share: how many words it takes, and the type of its job. Needs
 * cli/show/plan_result.h. */
#define TSR_PLAN_COMMAND(words, job)                                                                        \
    TSR_COMMAND_FUNCTIONS(job), .set_defaults = set_defaults, .takes = TSR_PLAN_TAKES, .most_words = words, \
                                .makes_plan = true, .open = tsr_plan_job_open, .run = tsr_plan_job_run,     \
                                .print = tsr_plan_result_print, .write_json = tsr_plan_result_json,         \
                                .conclude = tsr_plan_job_conclude, .exit_code = tsr_plan_job_exit_code

/* ---- for `tessera batch`, which runs several plans ---- */

/* Makes the plan. Fails if it cannot be run: unused limits, or nothing to quantize. */
tsr_status tsr_plan_job_make(tsr_plan_job *job, tsr_err *err);

/* Prints the warnings of the plan, and a warning if the disk is too small. */
void tsr_plan_job_warn(const tsr_command_context *context);

/* Judges the result of a plan that the engine has run; takes *result over. `status` and *err are those of the run. */
tsr_status tsr_plan_job_judge(tsr_plan_job *job, tsr_status status, tsr_engine_result *result, tsr_err *err);
