/* Previews the output of `tessera quantize` with default options: names, dtypes, shapes and config.json, without
 * data. */
#ifndef TSR_CONVERT_JOBS_QUANTIZE_PREVIEW_H
#define TSR_CONVERT_JOBS_QUANTIZE_PREVIEW_H

#include "convert/jobs/quantize_job.h"
#include "formats/weights/weights.h"

typedef struct tsr_quantize_preview {
    tsr_checkpoint seen; /* reading its tensors fails */
    tsr_weights weights; /* weights of the preview */
    tsr_plan plan;       /* the plan with its warnings */
    /* private */
    tsr_quantize_job job;
} tsr_quantize_preview;

/* Makes a preview of `source`, which must outlive it; `preview` must not move. Returns the errors of planning:
 * TSR_E_NOTHING if nothing would be quantized. On failure there is nothing to free. */
tsr_status tsr_quantize_preview_make(tsr_quantize_preview *preview, const tsr_checkpoint *source,
                                     tsr_err *err) TSR_WARN_UNUSED;

void tsr_quantize_preview_free(tsr_quantize_preview *preview);

#endif
