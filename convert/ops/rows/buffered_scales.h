/* Scales that a step holds in memory until it ends: made in FP32, stored in their dtype. */
#ifndef TSR_CONVERT_OPS_ROWS_BUFFERED_SCALES_H
#define TSR_CONVERT_OPS_ROWS_BUFFERED_SCALES_H

#include "convert/plan/plan.h"

/* Stores `n` scales, values of the dtype (F32, BF16 or F16) already, from buffered[first] on. Thread-safe where no two
 * calls share a place. */
void tsr_buffered_scales_store(tsr_dtype dtype, const float *scales, uint64_t n, void *buffered, uint64_t first);

/* A step's .finish where out[1] is its scales: their figures for the report. TSR_E_NOMEM. */
tsr_status tsr_buffered_scales_finish(const tsr_step *step, void *const *buffered, tsr_quant_stats *stats,
                                      tsr_err *err) TSR_WARN_UNUSED;

#endif
