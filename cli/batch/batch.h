/* `tessera batch`: many commands in one run.
 *
 * batch_jobs.c          reads the file of jobs
 * batch_job.c           validates, plans, begins and ends one job
 * batch_paths.c         compares the inputs of jobs with the outputs of other jobs
 * batch_run.c           checks and runs all jobs
 * batch_shared_reads.c  runs jobs that read the same source together
 * batch_print.c         prints the plan and the table; writes JSON */
#pragma once

#include "cli/plan_job.h"
#include "cli/runner.h"

enum { TSR_MAX_JOBS = 1000, TSR_MAX_WORDS = 250, TSR_MAX_GROUP = 16 };

typedef enum tsr_batch_state {
    TSR_JOB_NOT_BEGUN,
    TSR_JOB_DONE,
    TSR_JOB_SHORT, /* a value is beyond a limit of the check */
    TSR_JOB_FAILED,
    TSR_JOB_INTERRUPTED,
} tsr_batch_state;

/* A path that a job reads or writes. */
typedef struct tsr_batch_path {
    const char *option; /* the option that names an output ("-o", "--json"); NULL: an input */
    const char *path;
    bool folder;  /* an output directory */
    bool tensors; /* an output that is a new safetensors file */
} tsr_batch_path;

typedef struct tsr_batch_job {
    const char *name;
    size_t line;  /* line in the file of jobs, from 1 */
    char **words; /* the command and its arguments as given, then the options that the batch adds; NULL-terminated */
    size_t n_given, n_words;
    const tsr_command *command;
    int n_name;                /* number of words that name the command */
    tsr_batch_context context; /* properties of the batch that the job's command needs */
    const char *json;          /* path of its JSON result; NULL: it is kept in `result` */
    bool in_results;           /* `json` is in the folder of --results */
    tsr_batch_path *paths;     /* in the batch's arena */
    size_t n_paths;
    bool *after;    /* [n_jobs]: set for jobs whose outputs it reads */
    bool dependent; /* there are such jobs, so it cannot be planned before they are done */

    /* After planning. */
    bool planned;
    uint64_t files, bytes_in, bytes_out;
    const char **warnings; /* warnings of its plan; only for a dry run */
    size_t n_warnings;
    tsr_engine_need need;
    uint64_t memory;        /* most memory that it may use */
    tsr_stamp source;       /* stamp of the first file that it reads */
    const char *own_option; /* the option because of which it does not share memory and threads with others; NULL: it
                             * does */
    /* The first of the jobs that are read together; NULL: this job runs alone. */
    struct tsr_batch_job *leader; /* NULL: it runs alone */
    const char *alone;            /* why it runs alone although another job reads the same source; NULL: none does */
    uint64_t bytes_once;          /* for a leader: source bytes read for the whole group */
    uint64_t bytes_wanted;        /* for a leader: source bytes used by the steps of the group */

    /* After the run. */
    tsr_batch_state state;
    int code; /* exit code, once it has begun */
    double seconds;
    const char *waits_for; /* the failed job that it depends on; NULL: none */
    tsr_text result;       /* its JSON result, if it is kept */
    tsr_status status;     /* result of planning or running; err has the message */
    tsr_err err;
    bool measured; /* a checkpoint was made or found complete; then the following are set: */
    bool complete; /* nothing was left to do */
    uint64_t bytes_read, bytes_written;
    double sqnr; /* dB; NaN: nothing was quantized */
} tsr_batch_job;

typedef struct tsr_batch {
    const char *path;                /* the file of jobs */
    const tsr_command_context *main; /* the invocation of `tessera batch` */
    const char *results, *threads, *memory, *cpumask, *io;
    bool keep_going, dry_run;
    tsr_batch_job *jobs; /* [n_jobs + 1], in `arena`; the last one is the batch itself, with its own paths */
    size_t n_jobs;
    const tsr_terminal *terminal; /* the batch's; jobs write to the same streams */
    double seconds;
    int code;             /* the most severe code of all jobs */
    tsr_status cancelled; /* TSR_E_CANCELLED: the run was interrupted */
    tsr_arena arena;
} tsr_batch;

/* ---- batch_jobs.c ---- */

/* Reads the file. TSR_E_FORMAT, with the line: it is not JSON, or not a list of jobs. */
tsr_status tsr_batch_read(tsr_batch *batch, tsr_err *err);

/* Reads the same from a text. */
tsr_status tsr_batch_read_text(tsr_batch *batch, const char *text, size_t size, tsr_err *err);

/* Puts "FILE: line 3: job 'x': " before a message; returns `status`. */
tsr_status tsr_batch_blame(const tsr_batch *batch, const tsr_batch_job *job, tsr_status status, tsr_err *err);

/* ---- batch_job.c ---- */

/* Finds the command of a job, adds the batch's options, parses the command line, checks its paths and records them. */
tsr_status tsr_batch_validate_job(tsr_batch *batch, tsr_batch_job *job, tsr_err *err);

/* Records the paths of the batch itself. */
tsr_status tsr_batch_record_own_paths(tsr_batch *batch, tsr_err *err);

/* Begins the command of a job that makes a checkpoint, and makes its plan. The context must be closed, whatever is
 * returned. */
tsr_status tsr_batch_make_plan(tsr_batch *batch, tsr_batch_job *job, tsr_command_context *context, tsr_err *err);

/* Plans a job, records the sizes of the plan, and frees it. */
tsr_status tsr_batch_plan_job(tsr_batch *batch, tsr_batch_job *job, tsr_err *err);

/* Prints the heading of a job, and resets its outcome. */
void tsr_batch_begin_job(const tsr_batch *batch, tsr_batch_job *job);

/* Ends the command of a job with `status`, records the outcome, and closes the context. */
void tsr_batch_end_job(tsr_batch *batch, tsr_batch_job *job, tsr_command_context *context, tsr_status status,
                       const tsr_err *err, double seconds);

/* ---- batch_paths.c ---- */

/* Finds the jobs that read outputs of earlier jobs. TSR_E_USAGE, with both jobs: one output is or lies in another, or a
 * job reads an output of a later job. */
tsr_status tsr_batch_relate(tsr_batch *batch, tsr_err *err);

/* ---- batch_run.c ---- */

/* Checks all command lines and paths, and plans the jobs that can be planned. Writes nothing, except that it creates
 * the folder of --results if everything is valid. */
tsr_status tsr_batch_check(tsr_batch *batch, tsr_err *err);

/* Runs the jobs. A job that fails does not fail the batch, but is recorded in its state. */
tsr_status tsr_batch_run(tsr_batch *batch, tsr_err *err);

/* Frees all that the batch holds. */
void tsr_batch_free(tsr_batch *batch);

/* ---- batch_shared_reads.c ---- */

/* Finds the jobs that can be read together: plans over one source, as many as fit in memory. */
void tsr_batch_group(tsr_batch *batch);

/* Finds how many bytes of the source a group reads. */
tsr_status tsr_batch_count_once(tsr_batch *batch, tsr_batch_job *leader, tsr_err *err);

/* Runs a group. Failures are recorded in the states of its jobs. */
tsr_status tsr_batch_run_group(tsr_batch *batch, tsr_batch_job *leader, tsr_err *err);

/* ---- batch_print.c ---- */

/* Prints the plan of a dry run, and the table at the end. */
void tsr_batch_print_plan(const tsr_batch *batch);
void tsr_batch_print(const tsr_batch *batch);

/* Appends the summary as members of a JSON object. */
void tsr_batch_json(const tsr_batch *batch, tsr_text *text);
