/* Declares the step that adds the updates of low-rank adapters to a weight. */
#pragma once

#include "convert/ops/merge/merge_rows.h"

/* Adds the step. The values of the weight are decoded to FP32, the update is added, and the sum is stored in the dtype
 * or format of the weight, under the same names. Scales of blocks, rows and groups are computed anew from the largest
 * |x|; with `powers`, they are powers of two. Companions that do not change, such as input scales, are left to the
 * caller.
 *
 * `amax` is needed if tsr_merge_has_shared_scale: the largest merged |x| of all weights that have this scale. The scale
 * stays unless a value is beyond it. A weight without an update is copied as long as its scale stays.
 *
 * The row of the step in tsr_quant_stats compares the update x with the stored change y = after - before: `nonzero`
 * counts x != 0, `flushed` those with y == 0, and the sums are over x and y. TSR_E_UNSUPPORTED: the format cannot be
 * stored again. */
tsr_status tsr_plan_merge(tsr_plan *plan, const tsr_merge_source *source, bool powers, const tsr_amax *amax,
                          tsr_err *err);

/* Returns true if the weight has a scale of its whole tensor: FP8 with a scale a tensor, and NVFP4. */
bool tsr_merge_has_shared_scale(const tsr_weight *weight);

/* Returns the weight and the updates of a step of tsr_plan_merge; NULL: it is another step. */
const tsr_merge_source *tsr_merge_step_source(const tsr_step *step);
