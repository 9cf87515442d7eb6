/* Reading, planning, carrying out. */
#include "cli/plan_job.h"

#include "cli/results.h"

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

int tsr_plan_command(const char *command, tsr_plan_reader *read, int argc, char **argv)
{
    tsr_plan_job job = {.idle = false};
    tsr_err err = {{0}};
    tsr_status status = read(&job, argc, argv, &err);
    if (status == TSR_OK && !job.idle)
        status = tsr_plan_job_make(&job, &err);
    if (status == TSR_OK && !job.idle)
        status = tsr_run_plan(&job.run, &job.plan, &err);
    const bool fine = job.run.beyond == 0;
    tsr_plan_job_close(&job);
    return tsr_end(command, status, fine, &err);
}
