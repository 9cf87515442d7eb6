/* `tessera batch`: many commands in one run, shared by the files that it is made of:
 *
 * cmd_batch.c     options, and the order of things
 * batch_jobs.c    reading the file of jobs
 * batch_places.c  who reads what another writes, and who may not
 * batch_run.c     checking, planning and carrying out jobs
 * batch_together.c  those that read the same source, at one go
 * batch_tell.c    the plan, the table at the end, the summary as JSON */
#ifndef TSR_CLI_BATCH_H
#define TSR_CLI_BATCH_H

#include "cli/commands.h"
#include "cli/places.h"
#include "cli/plan_job.h"
#include "cli/stage.h"
#include "cli/terminal.h"

enum { TSR_MAX_JOBS = 1000, TSR_MAX_WORDS = 250, TSR_MAX_TOGETHER = 16 };

typedef enum tsr_batch_state {
    TSR_JOB_NOT_BEGUN,
    TSR_JOB_DONE,
    TSR_JOB_SHORT, /* a check fell short */
    TSR_JOB_FAILED,
    TSR_JOB_INTERRUPTED,
} tsr_batch_state;

/* "not begun", "done", "short", "failed", "interrupted". Static storage. */
const char *tsr_batch_state_name(tsr_batch_state state);

typedef struct tsr_batch_job {
    const char *name;
    size_t line;  /* of the file of jobs, from 1 */
    char **words; /* the command and its arguments, as given, and then what the batch adds; a NULL follows */
    size_t n_given, n_words;
    tsr_command_fn *run;
    tsr_plan_reader *reader; /* of a command that makes a checkpoint; NULL: another one */
    tsr_stage stage;
    const char *json; /* where its result is written; NULL: it is kept in the stage */
    bool in_results;  /* there because of --results */
    bool *after;      /* [n_jobs]: the jobs whose outputs it reads */
    bool dependent;   /* there are such jobs: it cannot be planned before they are done */
    /* Found by planning, where planned: */
    bool planned;
    uint64_t files, bytes_in, bytes_out;
    const char **warnings; /* of its plan; only in a dry run */
    size_t n_warnings;
    tsr_engine_need need;
    uint64_t memory;        /* what it may use */
    tsr_stamp source;       /* of the first file that it reads */
    const char *own_option; /* of the machine, which it does not share with others; NULL: none */
    /* Jobs that are read together have the first of them as their leader. */
    struct tsr_batch_job *leader; /* NULL: it is carried out by itself */
    const char *alone;            /* why, where another one reads the same source; NULL: there is none */
    uint64_t bytes_once;          /* a leader's: bytes that are read, or were, for all of them */
    uint64_t bytes_wanted;        /* a leader's: bytes that their steps had */
    tsr_owed owed;
    /* Of the run: */
    tsr_batch_state state;
    int code; /* exit code, once it has begun */
    double seconds;
    const char *waits_for; /* why it was not begun: the job that it needs; NULL: the batch stopped before */
} tsr_batch_job;

typedef struct tsr_batch {
    const char *path; /* the file of jobs */
    const char *results, *json, *junit, *threads, *memory, *cpumask, *io;
    tsr_progress_options progress;
    bool keep_going, apart, dry_run, quiet, help;
    tsr_batch_job *jobs; /* in `arena`; behind the last one stands the batch itself, with what it reads and writes */
    size_t n_jobs;
    tsr_terminal terminal; /* the batch's own; jobs write to the same streams */
    double seconds;
    int code; /* the gravest of all jobs */
    tsr_arena arena;
} tsr_batch;

/* ---- batch_jobs.c ---- */

/* Reads the file. TSR_E_FORMAT, with the line: it is not JSON, or not a list of jobs. */
tsr_status tsr_batch_read(tsr_batch *batch, tsr_err *err) TSR_WARN_UNUSED;

/* The same of a text. */
tsr_status tsr_batch_read_text(tsr_batch *batch, const char *text, size_t size, tsr_err *err) TSR_WARN_UNUSED;

/* Puts "FILE: line 3: job 'x': " before a message; returns `status`. */
tsr_status tsr_batch_blame(const tsr_batch *batch, const tsr_batch_job *job, tsr_status status, tsr_err *err);

/* ---- batch_places.c ---- */

/* Finds out which job reads what another one writes. TSR_E_USAGE, with both jobs: two write to one place, one writes into what
 * another reads, or one reads what a later one writes. */
tsr_status tsr_batch_relate(tsr_batch *batch, tsr_err *err) TSR_WARN_UNUSED;

/* ---- batch_run.c ---- */

/* Checks all command lines and places, and plans what can be planned. Nothing is written but, where all is well,
 * the folder of --results. */
tsr_status tsr_batch_check(tsr_batch *batch, tsr_err *err) TSR_WARN_UNUSED;

/* Carries the jobs out. TSR_E_CANCELLED: interrupted. That jobs fail is no failure of the batch: it is in their states. */
tsr_status tsr_batch_run(tsr_batch *batch, tsr_err *err) TSR_WARN_UNUSED;

/* Puts a job on stage; and notes how it ended, which takes it off again. */
void tsr_batch_begin_job(const tsr_batch *batch, tsr_batch_job *job);
void tsr_batch_end_job(tsr_batch *batch, tsr_batch_job *job, int code, double seconds);

/* Frees all that the batch holds. */
void tsr_batch_free(tsr_batch *batch);

/* ---- batch_together.c ---- */

/* Finds the jobs that can be read together: quantize and convert with plans over one source, as many as the memory holds. */
void tsr_batch_group(tsr_batch *batch);

/* The names of such jobs. */
const char *tsr_batch_names(tsr_batch *batch, const tsr_batch_job *leader);

/* Finds how many bytes of the source they read. */
tsr_status tsr_batch_count_once(tsr_batch *batch, tsr_batch_job *leader, tsr_err *err) TSR_WARN_UNUSED;

/* Carries them out. Their failures are in their states. */
tsr_status tsr_batch_run_group(tsr_batch *batch, tsr_batch_job *leader, tsr_err *err) TSR_WARN_UNUSED;

/* ---- batch_tell.c ---- */

/* Whether people are told anything on stdout. */
bool tsr_batch_talks(const tsr_batch *batch);

/* What --dry-run prints, and the table at the end. */
void tsr_batch_print_plan(const tsr_batch *batch);
void tsr_batch_print(const tsr_batch *batch);

/* The summary as JSON. */
void tsr_batch_write(const tsr_batch *batch, tsr_text *text);

#endif
