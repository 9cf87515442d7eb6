/* Declares scales that a step buffers in memory until it ends. They are computed in FP32 and stored in their dtype. */
#pragma once

#include "convert/plan/plan.h"

/* Stores `n` scales, whose values are representable in the dtype (F32, BF16 or F16), from buffered[first] on.
 * Thread-safe if no two calls write the same elements. */
void tsr_buffered_scales_store(tsr_dtype dtype, const float *scales, uint64_t n, void *buffered, uint64_t first);

/* Packs the zero points of rows, [rows, groups], into the words of the whole tensor, which were 0: word (r / per, g)
 * holds row r at position r % per, where per = 32 / bits. Thread-safe if no two calls write the same words. */
void tsr_buffered_zeros_pack(uint32_t bits, const int8_t *zeros, uint64_t row, uint64_t rows, uint64_t groups,
                             uint32_t *words);

/* The .finish function of steps whose out[1] is scales: computes their statistics for the report. TSR_E_NOMEM. */
tsr_status tsr_buffered_scales_finish(const tsr_step *step, void *const *buffered, tsr_quant_stats *stats,
                                      tsr_err *err);
