/* Checking all jobs before the first one begins, and carrying them out. */
#include "cli/batch.h"

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/results.h"
#include "common/file.h"
#include "convert/plans/policy_plan.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* A result that no file is named for is kept in memory under this path. It exists, and is nobody's. */
#define KEPT "/dev/null"

/* ---- words that the batch adds ---- */

/* Of the options that a batch passes on, those that a command takes. */
static const struct {
    const char *command, *takes;
} kPassed[] = {
    {"quantize", "--threads --memory --cpumask"},
    {"convert", "--threads --memory --cpumask"},
    {"compare-schemes", "--threads --memory --cpumask"},
    {"plan-schemes", "--threads --memory --cpumask"},
    {"diff", "--threads --memory"},
    {"verify", "--threads"},
};

/* The value of an option among the words of a job; NULL: it is not there. */
static const char *value_of(const tsr_batch_job *job, const char *option)
{
    const size_t n = strlen(option);
    for (size_t i = 1; i < job->n_given; i++) {
        const char *const word = job->words[i];
        if (strcmp(word, option) == 0)
            return i + 1 < job->n_given ? job->words[i + 1] : "";
        if (strncmp(word, option, n) == 0 && word[n] == '=')
            return word + n + 1;
    }
    return NULL;
}

static void add_words(tsr_batch_job *job, const char *option, const char *value)
{
    job->words[job->n_words++] = (char *)option;
    if (value != NULL)
        job->words[job->n_words++] = (char *)value;
    job->words[job->n_words] = NULL;
}

/* A job's own value of an option counts, where it has one. */
static tsr_status complete(tsr_batch *batch, tsr_batch_job *job, tsr_err *err)
{
    const char *const passed[][2] = {
        {"--threads", batch->threads}, {"--memory", batch->memory}, {"--cpumask", batch->cpumask}};
    const char *takes = "";
    for (size_t i = 0; i < sizeof kPassed / sizeof *kPassed; i++)
        takes = strcmp(kPassed[i].command, job->words[0]) == 0 ? kPassed[i].takes : takes;
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++) {
        if (passed[i][1] != NULL && tsr_is_listed(takes, passed[i][0]) && value_of(job, passed[i][0]) == NULL)
            add_words(job, passed[i][0], passed[i][1]);
    }
    if (!tsr_batch_talks(batch))
        add_words(job, "--quiet", NULL);
    job->json = value_of(job, "--json");
    if (job->json != NULL)
        return TSR_OK;
    if (batch->results != NULL) {
        job->json = tsr_arena_printf(&batch->arena, "%s/%s.json", batch->results, job->name);
        if (job->json == NULL)
            return tsr_out_of_memory(err, NULL);
    }
    add_words(job, "--json", job->json == NULL ? KEPT : job->json);
    job->stage.json = job->json == NULL ? KEPT : NULL;
    return TSR_OK;
}

/* ---- checking ---- */

static tsr_status rehearse(tsr_batch *batch, tsr_batch_job *job, tsr_err *err)
{
    job->run = tsr_find_command(job->words[0]);
    if (job->run == NULL || job->run == tsr_cmd_batch)
        return tsr_fail(err, TSR_E_USAGE, "'%s' is no command that a batch runs; 'tessera --help' lists them",
                        job->words[0]);
    job->reader = job->run == tsr_cmd_quantize  ? tsr_quantize_read
                  : job->run == tsr_cmd_convert ? tsr_convert_read
                                                : NULL;
    TSR_TRY(complete(batch, job, err));
    job->stage.job = job->name;
    job->stage.rehearsal = true;
    tsr_stage_set(&job->stage);
    (void)job->run((int)job->n_words - 1, job->words + 1);
    tsr_stage_set(NULL);
    job->stage.rehearsal = false;
    if (job->stage.rehearsed)
        return TSR_OK;
    if (job->stage.status == TSR_OK)
        return tsr_fail(err, TSR_E_USAGE, "it ends without having read or written anything");
    return tsr_fail(err, job->stage.status, "%s", job->stage.err.msg);
}

/* Makes the plan of a job, notes what it comes to, and lets go of it. */
static tsr_status plan(tsr_batch_job *job, tsr_err *err)
{
    tsr_plan_job made = {.idle = false};
    tsr_stage_set(&job->stage);
    tsr_status status = job->reader(&made, (int)job->n_words - 1, job->words + 1, err);
    if (status == TSR_OK)
        status = tsr_plan_job_make(&made, err);
    if (status == TSR_OK)
        status = tsr_run_plan_check(&made.run, &made.plan, err);
    tsr_stage_set(NULL);
    job->planned = status == TSR_OK;
    job->files = made.plan.n_files;
    job->bytes_in = made.plan.bytes_in;
    job->bytes_out = made.plan.bytes_out;
    tsr_plan_job_close(&made);
    return status;
}

/* With --keep-going a job that cannot be planned fails when its turn comes, and the others are carried out. */
static tsr_status plan_all(tsr_batch *batch, tsr_err *err)
{
    for (size_t i = 0; i < batch->n_jobs; i++) {
        tsr_batch_job *const job = &batch->jobs[i];
        if (job->reader == NULL || job->dependent)
            continue;
        const tsr_status status = plan(job, &job->stage.err);
        job->stage.status = status;
        if (status == TSR_E_NOMEM || (status != TSR_OK && !batch->keep_going)) {
            *err = job->stage.err;
            return tsr_batch_blame(batch, job, status, err);
        }
    }
    return TSR_OK;
}

tsr_status tsr_batch_check(tsr_batch *batch, tsr_err *err)
{
    if (batch->results != NULL && !batch->dry_run)
        TSR_TRY(tsr_make_dirs(batch->results, err));
    if (batch->results != NULL && access(batch->results, F_OK) != 0)
        batch->results = NULL; /* --dry-run makes no folder */
    for (size_t i = 0; i < batch->n_jobs; i++) {
        const tsr_status status = rehearse(batch, &batch->jobs[i], err);
        if (status != TSR_OK)
            return tsr_batch_blame(batch, &batch->jobs[i], status, err);
    }
    TSR_TRY(tsr_batch_relate(batch, err));
    return plan_all(batch, err);
}

/* ---- carrying out ---- */

static tsr_batch_state state_of(int code)
{
    return code == 0 ? TSR_JOB_DONE : code == 1 ? TSR_JOB_SHORT : code == 130 ? TSR_JOB_INTERRUPTED : TSR_JOB_FAILED;
}

static void set_stage(const tsr_batch *batch, tsr_batch_job *job)
{
    job->stage.progress_fd = batch->terminal.fd;
    job->stage.jsonl = batch->terminal.jsonl;
    job->stage.status = TSR_OK;
    job->stage.err = (tsr_err){{0}};
    job->stage.measured = job->stage.complete = false;
    job->stage.sqnr = NAN;
    tsr_stage_set(&job->stage);
}

/* Whether all is well with the jobs whose outputs it reads. An output that only fell short of a limit is whole. */
static bool may_begin(const tsr_batch *batch, tsr_batch_job *job)
{
    for (size_t i = 0; i < batch->n_jobs; i++) {
        const tsr_batch_state state = batch->jobs[i].state;
        if (job->after[i] && state != TSR_JOB_DONE && state != TSR_JOB_SHORT) {
            job->waits_for = batch->jobs[i].name;
            return false;
        }
    }
    return true;
}

static void announce(const tsr_batch *batch, const tsr_batch_job *job)
{
    if (tsr_batch_talks(batch))
        tsr_print("== %s: %s (%zu of %zu) ==\n", job->name, job->words[0], (size_t)(job - batch->jobs) + 1,
                  batch->n_jobs);
}

static void run_alone(const tsr_batch *batch, tsr_batch_job *job)
{
    const double began = tsr_now();
    announce(batch, job);
    set_stage(batch, job);
    job->code = job->run((int)job->n_words - 1, job->words + 1);
    tsr_stage_set(NULL);
    job->seconds = tsr_now() - began;
    job->state = state_of(job->code);
    if (batch->json == NULL && batch->junit == NULL)
        tsr_text_free(&job->stage.result);
}

tsr_status tsr_batch_run(tsr_batch *batch, tsr_err *err)
{
    const double began = tsr_now();
    const atomic_bool *const cancel = tsr_terminal_catch_interrupt();
    bool stopped = false;
    for (size_t i = 0; i < batch->n_jobs; i++) {
        tsr_batch_job *const job = &batch->jobs[i];
        if (stopped || tsr_is_cancelled(cancel) || !may_begin(batch, job))
            continue;
        run_alone(batch, job);
        batch->code = tsr_graver_code(batch->code, job->code);
        stopped = job->state != TSR_JOB_DONE && !batch->keep_going;
    }
    batch->seconds = tsr_now() - began;
    if (!tsr_is_cancelled(cancel))
        return TSR_OK;
    batch->code = 130;
    return tsr_fail(err, TSR_E_CANCELLED, "interrupted; what is finished is kept: repeat the command to carry on");
}

void tsr_batch_free(tsr_batch *batch)
{
    for (size_t i = 0; batch->jobs != NULL && i <= batch->n_jobs; i++)
        tsr_stage_free(&batch->jobs[i].stage);
    tsr_arena_free(&batch->arena);
    batch->jobs = NULL;
}
