/* Checks all jobs before the first one begins, and runs them. */
#include "cli/batch/batch.h"

#include "cli/io/output.h"
#include "common/file.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- checking ---- */

/* Plans all jobs. With --keep-going, a job that cannot be planned fails when its turn comes, and the others run. */
static tsr_status plan_all(tsr_batch *batch, tsr_err *err)
{
    for (size_t i = 0; i < batch->n_jobs; i++) {
        tsr_batch_job *const job = &batch->jobs[i];
        if (!job->command->makes_plan || job->dependent)
            continue;
        const tsr_status status = tsr_batch_plan_job(batch, job, &job->err);
        job->status = status;
        if (batch->dry_run && status != TSR_OK)
            batch->code = tsr_graver_code(batch->code, tsr_exit_code(status));
        if (status == TSR_E_NOMEM || (status != TSR_OK && !batch->keep_going)) {
            *err = job->err;
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
        const tsr_status status = tsr_batch_validate_job(batch, &batch->jobs[i], err);
        if (status != TSR_OK)
            return tsr_batch_blame(batch, &batch->jobs[i], status, err);
    }
    TSR_TRY(tsr_batch_relate(batch, err));
    return plan_all(batch, err);
}

/* The folder of results is created after the paths of all outputs have been checked. */
tsr_status tsr_batch_check(tsr_batch *batch, tsr_err *err)
{
    if (batch->results != NULL && batch->dry_run && access(batch->results, F_OK) != 0)
        batch->results = NULL; /* --dry-run creates no folder */
    TSR_TRY(check(batch, err));
    return batch->results != NULL && !batch->dry_run ? tsr_make_dirs(batch->results, err) : TSR_OK;
}

/* ---- running ---- */

/* Returns true if the jobs whose outputs it reads succeeded. An output that only exceeded a limit is complete. */
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

static void run_alone(tsr_batch *batch, tsr_batch_job *job)
{
    const double began = tsr_now();
    tsr_command_context c;
    tsr_err err = {0};
    tsr_batch_begin_job(batch, job);
    tsr_status status = tsr_command_begin(&c, job->command, batch->main, &err);
    c.batch = &job->context;
    if (status == TSR_OK)
        status = tsr_command_run(&c, (int)job->n_words - job->n_name, job->words + job->n_name, &err);
    tsr_batch_end_job(batch, job, &c, status, &err, tsr_now() - began);
}

/* Returns true if a job, or one that is read together with it, did not succeed. */
static bool has_failed(const tsr_batch *batch, const tsr_batch_job *job)
{
    for (size_t i = 0; i < batch->n_jobs; i++) {
        const tsr_batch_job *const other = &batch->jobs[i];
        if ((other == job || (job->leader != NULL && other->leader == job->leader)) && other->state != TSR_JOB_DONE)
            return true;
    }
    return false;
}

/* Removes results of an earlier run, which could otherwise be mistaken for new ones if a job does not begin. */
static tsr_status remove_old_results(const tsr_batch *batch, tsr_err *err)
{
    for (size_t i = 0; i < batch->n_jobs; i++) {
        const tsr_batch_job *const job = &batch->jobs[i];
        struct stat st;
        if (job->in_results && lstat(job->json, &st) == 0 && S_ISREG(st.st_mode) && unlink(job->json) != 0)
            return tsr_fail_errno(err, "%s: cannot remove a file that the last run left behind", job->json);
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
        const bool led = job->leader != NULL && job->leader != job; /* it runs with its leader */
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
    batch->cancelled = TSR_E_CANCELLED;
    return TSR_OK;
}

void tsr_batch_free(tsr_batch *batch)
{
    for (size_t i = 0; batch->jobs != NULL && i <= batch->n_jobs; i++)
        tsr_text_free(&batch->jobs[i].result);
    tsr_arena_free(&batch->arena);
    batch->jobs = NULL;
}
