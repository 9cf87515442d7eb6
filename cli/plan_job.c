/* Reading, planning, carrying out. */
#include "cli/plan_job.h"

#include "cli/places.h"
#include "cli/results.h"
#include "cli/terminal.h"
#include "kernels/cpu/cpu.h"

tsr_status tsr_plan_job_make(tsr_plan_job *job, tsr_err *err)
{
    return job->make(job, err);
}

void tsr_plan_job_close(tsr_plan_job *job)
{
    tsr_plan_free(&job->plan);
    tsr_arena_free(&job->run.shards.arena);
    if (job->close != NULL)
        job->close(job->own);
    *job = (tsr_plan_job){.idle = true};
}

/* A rank but 0 says nothing: what it has to say, it says to rank 0. */
static void fall_silent(tsr_plan_run *run)
{
    run->quiet = true;
    run->json = run->junit = NULL;
    run->progress = (tsr_progress_options){0};
    (void)tsr_owe_reports((tsr_owed){0});
    (void)tsr_terminal_catch_interrupt(); /* rank 0 stops the job, and this one with it */
}

/* Joins the other processes, plans, and sees to it that all have the same plan. */
static tsr_status plan_together(tsr_plan_job *job, tsr_err *err)
{
    tsr_plan_run *const run = &job->run;
    const tsr_run_options options = {.threads = run->threads, .memory = run->memory};
    TSR_TRY(tsr_ranks_begin(&run->ranks, err));
    if (tsr_ranks_mine(run->ranks) > 0)
        fall_silent(run);
    const tsr_status status = tsr_plan_job_make(job, err);
    return tsr_ranks_agree(run->ranks, status, &job->plan, &options, err);
}

static tsr_status carry_out(tsr_plan_job *job, tsr_err *err)
{
    tsr_plan_run *const run = &job->run;
    if (run->ranks == NULL || tsr_ranks_mine(run->ranks) == 0)
        return tsr_run_plan(run, &job->plan, err);
    return tsr_ranks_serve(run->ranks, &job->plan, run->dst == NULL ? "" : run->dst,
                           tsr_cpu_flags() & (unsigned)run->cpumask, err);
}

int tsr_plan_command(const char *command, tsr_plan_reader *read, int argc, char **argv)
{
    tsr_plan_job job = {.idle = false};
    tsr_err err = {{0}};
    tsr_status status = read(&job, argc, argv, &err);
    if (status == TSR_OK && !job.idle)
        status = job.run.mpi ? plan_together(&job, &err) : tsr_plan_job_make(&job, &err);
    const bool agreed = status == TSR_OK;
    if (agreed && !job.idle)
        status = carry_out(&job, &err);
    const bool fine = job.run.beyond == 0;
    const bool silent = !agreed && job.run.ranks != NULL && tsr_ranks_mine(job.run.ranks) > 0;
    tsr_ranks_end(job.run.ranks);
    tsr_plan_job_close(&job);
    /* mpirun ends all processes as soon as one fails, and rank 0 has yet to say why. */
    return silent ? 0 : tsr_end(command, status, fine, &err);
}
