/* Checking all jobs before the first one begins, and carrying them out. */
#include "cli/batch.h"

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/results.h"
#include "common/file.h"
#include "convert/plans/policy_plan.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A result that no file is named for is kept in memory under this path. It exists, and is nobody's. */
#define KEPT "/dev/null"

/* ---- words that the batch adds ---- */

/* Of the options that a batch passes on, those that a command takes. */
static const struct {
    const char *command, *takes;
} kPassed[] = {
    {"quantize", "--threads --memory --cpumask --io"},
    {"convert", "--threads --memory --cpumask --io"},
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
        {"--threads", batch->threads}, {"--memory", batch->memory}, {"--cpumask", batch->cpumask}, {"--io", batch->io}};
    /* Jobs that are read together share what they may use, and each has its own way to its files. */
    static const char *const kOwn[] = {"it has its own --threads", "it has its own --memory",
                                       "it has its own --cpumask", NULL};
    const char *takes = "";
    for (size_t i = 0; i < sizeof kPassed / sizeof *kPassed; i++)
        takes = strcmp(kPassed[i].command, job->words[0]) == 0 ? kPassed[i].takes : takes;
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++) {
        const bool own = value_of(job, passed[i][0]) != NULL;
        if (own)
            job->own_option = kOwn[i] == NULL ? job->own_option : kOwn[i];
        else if (passed[i][1] != NULL && tsr_is_listed(takes, passed[i][0]))
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
        job->in_results = true;
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
    const tsr_status ended = job->stage.status;
    job->stage.status = TSR_OK;
    if (job->stage.rehearsed)
        return TSR_OK;
    if (ended == TSR_OK)
        return tsr_fail(err, TSR_E_USAGE, "it ends without having read or written anything");
    return tsr_fail(err, ended, "%s", job->stage.err.msg);
}

/* What the plan warns of: told by a dry run, and otherwise when the job is carried out. */
static tsr_status keep_warnings(tsr_batch *batch, tsr_batch_job *job, tsr_plan_job *made, tsr_err *err)
{
    const tsr_plan *const p = &made->plan;
    if (!batch->dry_run)
        return TSR_OK;
    made->run.dry_run = true; /* no word of the room on the disk */
    tsr_run_plan_warn(&made->run, p);
    job->warnings = tsr_arena_alloc(&batch->arena, (p->n_warnings + 1) * sizeof *job->warnings);
    for (size_t i = 0; i < p->n_warnings && job->warnings != NULL; i++)
        job->warnings[job->n_warnings++] = tsr_arena_dup(&batch->arena, p->warnings[i], strlen(p->warnings[i]));
    return tsr_arena_status(&batch->arena, TSR_OK, err);
}

/* Makes the plan of a job, notes what it comes to, and lets go of it. */
static tsr_status plan(tsr_batch *batch, tsr_batch_job *job, tsr_err *err)
{
    tsr_plan_job made = {.idle = false};
    tsr_stage_set(&job->stage);
    tsr_status status = job->reader(&made, (int)job->n_words - 1, job->words + 1, err);
    if (status == TSR_OK)
        status = tsr_plan_job_make(&made, err);
    if (status == TSR_OK)
        status = tsr_run_plan_check(&made.run, &made.plan, err);
    if (status == TSR_OK)
        status = keep_warnings(batch, job, &made, err);
    tsr_stage_set(NULL);
    job->planned = status == TSR_OK;
    job->files = made.plan.n_files;
    job->bytes_in = made.plan.bytes_in;
    job->bytes_out = made.plan.bytes_out;
    if (status == TSR_OK) {
        job->need = tsr_engine_needs(&made.plan);
        job->memory = made.run.memory;
        job->source = made.plan.sources[0]->n_files > 0 ? made.plan.sources[0]->files[0].stamp : (tsr_stamp){0};
    }
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
        const tsr_status status = plan(batch, job, &job->stage.err);
        job->stage.status = status;
        if (batch->dry_run && status != TSR_OK)
            batch->code = tsr_graver_code(batch->code, tsr_exit_code(status));
        if (status == TSR_E_NOMEM || (status != TSR_OK && !batch->keep_going)) {
            *err = job->stage.err;
            return tsr_batch_blame(batch, job, status, err);
        }
    }
    tsr_batch_group(batch);
    for (size_t i = 0; batch->dry_run && i < batch->n_jobs; i++) {
        if (batch->jobs[i].leader == &batch->jobs[i])
            TSR_TRY(tsr_batch_count_once(batch, &batch->jobs[i], err));
    }
    return TSR_OK;
}

static tsr_status check(tsr_batch *batch, tsr_err *err)
{
    for (size_t i = 0; i < batch->n_jobs; i++) {
        const tsr_status status = rehearse(batch, &batch->jobs[i], err);
        if (status != TSR_OK)
            return tsr_batch_blame(batch, &batch->jobs[i], status, err);
    }
    TSR_TRY(tsr_batch_relate(batch, err));
    return plan_all(batch, err);
}

/* The folder of results is made when all is known to lie apart from what is read. */
tsr_status tsr_batch_check(tsr_batch *batch, tsr_err *err)
{
    if (batch->results != NULL && batch->dry_run && access(batch->results, F_OK) != 0)
        batch->results = NULL; /* --dry-run makes no folder */
    tsr_places_promise(batch->results);
    const tsr_status status = check(batch, err);
    tsr_places_promise(NULL);
    return status == TSR_OK && batch->results != NULL && !batch->dry_run ? tsr_make_dirs(batch->results, err) : status;
}

/* ---- carrying out ---- */

static tsr_batch_state state_of(int code)
{
    return code == 0 ? TSR_JOB_DONE : code == 1 ? TSR_JOB_SHORT : code == 130 ? TSR_JOB_INTERRUPTED : TSR_JOB_FAILED;
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

void tsr_batch_begin_job(const tsr_batch *batch, tsr_batch_job *job)
{
    tsr_stage *const s = &job->stage;
    if (tsr_batch_talks(batch))
        tsr_print("== %s: %s (%zu of %zu) ==\n", job->name, job->words[0], (size_t)(job - batch->jobs) + 1,
                  batch->n_jobs);
    s->progress_fd = batch->terminal.fd;
    s->jsonl = batch->terminal.jsonl;
    s->status = TSR_OK;
    s->err = (tsr_err){{0}};
    s->measured = s->complete = false;
    s->sqnr = NAN;
    tsr_stage_set(s);
}

void tsr_batch_end_job(tsr_batch *batch, tsr_batch_job *job, int code, double seconds)
{
    tsr_stage_set(NULL);
    job->code = code;
    job->seconds = seconds;
    job->state = state_of(code);
    batch->code = tsr_graver_code(batch->code, code);
    if (batch->json == NULL && batch->junit == NULL)
        tsr_text_free(&job->stage.result);
}

static void run_alone(tsr_batch *batch, tsr_batch_job *job)
{
    const double began = tsr_now();
    tsr_batch_begin_job(batch, job);
    const int code = job->run((int)job->n_words - 1, job->words + 1);
    tsr_batch_end_job(batch, job, code, tsr_now() - began);
}

/* Whether a job, or one that is read together with it, did not end well. */
static bool has_failed(const tsr_batch *batch, const tsr_batch_job *job)
{
    for (size_t i = 0; i < batch->n_jobs; i++) {
        const tsr_batch_job *const other = &batch->jobs[i];
        if ((other == job || (job->leader != NULL && other->leader == job->leader)) && other->state != TSR_JOB_DONE)
            return true;
    }
    return false;
}

/* What a job found the last time would pass for what it finds now, should it not come to that. */
static tsr_status remove_old_results(const tsr_batch *batch, tsr_err *err)
{
    for (size_t i = 0; i < batch->n_jobs; i++) {
        const tsr_batch_job *const job = &batch->jobs[i];
        struct stat st;
        if (job->in_results && lstat(job->json, &st) == 0 && S_ISREG(st.st_mode) && unlink(job->json) != 0)
            return tsr_fail_errno(err, "%s: cannot remove what the last run left", job->json);
    }
    return TSR_OK;
}

tsr_status tsr_batch_run(tsr_batch *batch, tsr_err *err)
{
    const double began = tsr_now();
    const atomic_bool *const cancel = tsr_terminal_catch_interrupt();
    bool stopped = false;
    TSR_TRY(remove_old_results(batch, err));
    for (size_t i = 0; i < batch->n_jobs; i++) {
        tsr_batch_job *const job = &batch->jobs[i];
        const bool led = job->leader != NULL && job->leader != job; /* it was done with its leader */
        if (led || stopped || tsr_is_cancelled(cancel) || !may_begin(batch, job))
            continue;
        if (job->leader == job)
            TSR_TRY(tsr_batch_run_group(batch, job, err));
        else
            run_alone(batch, job);
        stopped = !batch->keep_going && has_failed(batch, job);
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
