/* Scales that a step holds in memory until it ends: made in FP32, stored in their dtype. */
#ifndef TSR_CONVERT_OPS_HELD_SCALES_H
#define TSR_CONVERT_OPS_HELD_SCALES_H

#include "convert/engine/plan.h"

/* Stores `n` scales, values of the dtype (F32, BF16 or F16) already, from held[first] on. Thread-safe where no two
 * calls share a place. */
void tsr_held_scales_store(tsr_dtype dtype, const float *scales, uint64_t n, void *held, uint64_t first);

/* A step's .finish where out[1] is its scales: their figures for the report. TSR_E_NOMEM. */
tsr_status tsr_held_scales_finish(const tsr_step *step, void *const *held, tsr_quant_stats *stats,
                                  tsr_err *err) TSR_WARN_UNUSED;

#endif
