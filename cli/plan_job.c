/* Reading, planning, carrying out. */
#include "cli/plan_job.h"

#include "cli/together.h"
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

/* Plans together with other processes, which all have to have the same plan. A rank but 0 then works for rank 0, and comes back when
 * there is nothing left to do. */
static tsr_status plan_together(tsr_plan_job *job, tsr_err *err)
{
    tsr_plan_run *const run = &job->run;
    const tsr_told_where where = {&run->json, &run->junit, &run->progress};
    TSR_TRY(tsr_together_begin(&run->ranks, &where, err));
    TSR_TRY(tsr_plan_job_make(job, err));
    const tsr_engine_options options = {
        .run = {.threads = run->threads, .memory = run->memory},
        .io = (tsr_io_mode)run->io,
        .cpu_flags = tsr_cpu_flags() & (unsigned)run->cpumask,
        .ranks = run->ranks,
    };
    return tsr_engine_join(&job->plan, run->dst == NULL ? "" : run->dst, &options, err);
}

int tsr_plan_command(const char *command, tsr_plan_reader *read, int argc, char **argv)
{
    tsr_plan_job job = {.idle = false};
    tsr_err err = {{0}};
    tsr_status status = read(&job, argc, argv, &err);
    if (status == TSR_OK && !job.idle)
        status = job.run.mpi ? plan_together(&job, &err) : tsr_plan_job_make(&job, &err);
    if (status == TSR_OK && !job.idle && tsr_ranks_mine(job.run.ranks) == 0)
        status = tsr_run_plan(&job.run, &job.plan, &err);
    const bool fine = job.run.beyond == 0;
    tsr_ranks *const ranks = job.run.ranks;
    tsr_plan_job_close(&job);
    return tsr_together_end(ranks, command, status, fine, &err);
}
