/* Records failures of a run and names its output files. */
#include "convert/run/run_state.h"

void tsr_run_note_failure(tsr_run *r, tsr_status status, const tsr_err *err)
{
    if (r->failure.status == TSR_OK && status != TSR_OK)
        tsr_claims_stop(&r->claims); /* the other ranks must not begin another file */
    tsr_note_failure(&r->failure, status, err);
    pthread_cond_broadcast(&r->pool->changed);
}

void tsr_run_fail(tsr_run *r, tsr_status status, const tsr_err *err)
{
    pthread_mutex_lock(&r->pool->lock);
    tsr_run_note_failure(r, status, err);
    pthread_mutex_unlock(&r->pool->lock);
}

const char *tsr_run_path(const tsr_run *r, size_t file, char path[PATH_MAX])
{
    return tsr_output_path(r->dst, r->plan->files[file].name, path);
}

bool tsr_run_makes_tensor(const tsr_plan *plan, size_t index)
{
    const tsr_step *const step = &plan->steps[index];
    return step->op != &tsr_copy_op || !plan->files[step->file].raw;
}
