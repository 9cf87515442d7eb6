/* `tessera batch`: many commands in one run, shared by the files that it is made of:
 *
 * cmd_batch.c     options, and the order of things
 * batch_jobs.c    reading the file of jobs
 * batch_places.c  who reads what another writes, and who may not
 * batch_run.c     checking, planning and carrying out jobs
 * batch_tell.c    the plan, the table at the end, the summary as JSON */
#ifndef TSR_CLI_BATCH_H
#define TSR_CLI_BATCH_H

#include "cli/commands.h"
#include "cli/places.h"
#include "cli/plan_job.h"
#include "cli/stage.h"
#include "cli/terminal.h"

enum { TSR_MAX_JOBS = 1000, TSR_MAX_WORDS = 250 };

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
    bool *after;      /* [n_jobs]: the jobs whose outputs it reads */
    bool dependent;   /* there are such jobs: it cannot be planned before they are done */
    /* Found by planning, where planned: */
    bool planned;
    uint64_t files, bytes_in, bytes_out;
    /* Of the run: */
    tsr_batch_state state;
    int code; /* exit code, once it has begun */
    double seconds;
    const char *waits_for; /* why it was not begun: the job that it needs; NULL: the batch stopped before */
} tsr_batch_job;

typedef struct tsr_batch {
    const char *path; /* the file of jobs */
    const char *results, *json, *junit, *threads, *memory, *cpumask;
    tsr_progress_options progress;
    bool keep_going, dry_run, quiet, help;
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

/* Checks all command lines and places, and plans what can be planned. Nothing is written. */
tsr_status tsr_batch_check(tsr_batch *batch, tsr_err *err) TSR_WARN_UNUSED;

/* Carries the jobs out. TSR_E_CANCELLED: interrupted. That jobs fail is no failure of the batch: it is in their states. */
tsr_status tsr_batch_run(tsr_batch *batch, tsr_err *err) TSR_WARN_UNUSED;

/* Frees all that the batch holds. */
void tsr_batch_free(tsr_batch *batch);

/* ---- batch_tell.c ---- */

/* Whether people are told anything on stdout. */
bool tsr_batch_talks(const tsr_batch *batch);

/* What --dry-run prints, and the table at the end. */
void tsr_batch_print_plan(const tsr_batch *batch);
void tsr_batch_print(const tsr_batch *batch);

/* The summary as JSON. */
void tsr_batch_write(const tsr_batch *batch, tsr_text *text);

#endif
