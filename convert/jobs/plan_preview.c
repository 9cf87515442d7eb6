/* Builds a checkpoint without data from the outputs of a plan. */
#include "convert/jobs/plan_preview.h"

#include "convert/configs/fp8_config.h"

/* An offset past the end of any file, so that reading a tensor of the preview fails. */
static const uint64_t kNowhere = (uint64_t)1 << 62;

static tsr_status list_outputs(const tsr_plan *plan, tsr_tensors *tensors, tsr_err *err)
{
    for (size_t i = 0; i < plan->n_files; i++) {
        for (size_t k = 0; !plan->files[i].raw && k < plan->files[i].n_tensors; k++) {
            tsr_tensor t = *plan->files[i].tensors[k];
            t.source = 0;
            t.file = 0;
            t.offset = kNowhere;
            TSR_TRY(tsr_tensors_add(tensors, &t, err));
        }
    }
    return TSR_OK;
}

static tsr_status see(tsr_plan_preview *p, const tsr_plan *plan, const tsr_checkpoint *source, tsr_err *err)
{
    tsr_tensors tensors = {0};
    const tsr_plan_text *const config = tsr_plan_config(plan);
    tsr_status status = list_outputs(plan, &tensors, err);
    if (status == TSR_OK)
        status = tsr_checkpoint_see(&p->seen, source, &tensors, config == NULL ? NULL : config->data,
                                    config == NULL ? 0 : config->size, tsr_quantization_files, err);
    tsr_tensors_free(&tensors);
    TSR_TRY(status);
    p->seen.without_data = true;
    return tsr_weights_survey(&p->weights, &p->seen, (tsr_block){0, 0}, tsr_weights_pass_over, NULL, err);
}

tsr_status tsr_plan_preview_make(tsr_plan_preview *p, const tsr_plan *plan, const tsr_checkpoint *source, tsr_err *err)
{
    *p = (tsr_plan_preview){0};
    const tsr_status status = see(p, plan, source, err);
    if (status != TSR_OK)
        tsr_plan_preview_free(p);
    return status;
}

void tsr_plan_preview_free(tsr_plan_preview *p)
{
    tsr_weights_free(&p->weights);
    tsr_checkpoint_unsee(&p->seen);
}
