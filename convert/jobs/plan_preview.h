/* Previews the output of a plan: names, dtypes, shapes and config.json, without data. */
#pragma once

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"

typedef struct tsr_plan_preview {
    tsr_checkpoint seen; /* reading its tensors fails */
    tsr_weights weights;
} tsr_plan_preview;

/* Makes a preview of the output that `plan` makes of `source`. Both must outlive it, and it must not move. On failure
 * there is nothing to free. */
tsr_status tsr_plan_preview_make(tsr_plan_preview *preview, const tsr_plan *plan, const tsr_checkpoint *source,
                                 tsr_err *err);

void tsr_plan_preview_free(tsr_plan_preview *preview);
