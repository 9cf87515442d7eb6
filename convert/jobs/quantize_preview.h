/* The output that `tessera quantize` would make of a checkpoint with default options: names, dtypes, shapes and
 * config.json, without data. */
#ifndef TSR_CONVERT_JOBS_QUANTIZE_PREVIEW_H
#define TSR_CONVERT_JOBS_QUANTIZE_PREVIEW_H

#include "convert/jobs/quantize_job.h"
#include "formats/weights/weights.h"

typedef struct tsr_quantize_preview {
    tsr_checkpoint seen; /* reading a tensor of it fails */
    tsr_weights weights; /* of it */
    tsr_plan plan;       /* the plan; its warnings tell what would be made */
    /* private */
    tsr_quantize_job job;
} tsr_quantize_preview;

/* *preview must not move while it lives, and `source` outlives it. Errors are those of planning: TSR_E_NOTHING where nothing would be quantized. On failure
 * there is nothing to free. */
tsr_status tsr_quantize_preview_make(tsr_quantize_preview *preview, const tsr_checkpoint *source,
                                     tsr_err *err) TSR_WARN_UNUSED;

void tsr_quantize_preview_free(tsr_quantize_preview *preview);

#endif
