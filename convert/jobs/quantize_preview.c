/* Makes a plan with default options, and the preview of its output. */
#include "convert/jobs/quantize_preview.h"

tsr_status tsr_quantize_preview_make(tsr_quantize_preview *p, const tsr_checkpoint *source, tsr_scheme scheme,
                                     tsr_err *err)
{
    const tsr_job_source from = {.path = source->path, .max_shard_bytes = TSR_MAX_SHARD_BYTES};
    *p = (tsr_quantize_preview){.job = tsr_quantize_job_defaults()};
    p->job.sources[0] = source;
    p->job.of.scheme = scheme;
    tsr_status status = tsr_quantize_job_plan(&p->job, &from, &p->plan, err);
    if (status == TSR_OK)
        status = tsr_plan_preview_make(&p->output, &p->plan, source, err);
    if (status != TSR_OK)
        tsr_quantize_preview_free(p);
    return status;
}

void tsr_quantize_preview_free(tsr_quantize_preview *p)
{
    tsr_plan_preview_free(&p->output);
    tsr_plan_free(&p->plan);
    tsr_quantize_job_free(&p->job);
}
