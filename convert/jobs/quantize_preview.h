/* Plans `tessera quantize` with a scheme and default options, and previews its output. */
#pragma once

#include "convert/jobs/plan_preview.h"
#include "convert/jobs/quantize_job.h"

typedef struct tsr_quantize_preview {
    tsr_plan_preview output;
    tsr_plan plan; /* with its warnings */
    /* private */
    tsr_quantize_job job;
} tsr_quantize_preview;

/* Makes a preview of `source`, which must outlive it; `preview` must not move. Returns the errors of planning:
 * TSR_E_NOTHING if nothing would be quantized. On failure there is nothing to free. */
tsr_status tsr_quantize_preview_make(tsr_quantize_preview *preview, const tsr_checkpoint *source, tsr_scheme scheme,
                                     tsr_err *err);

void tsr_quantize_preview_free(tsr_quantize_preview *preview);
