/* Declares the plan that restores an int4 checkpoint from its BF16 copy and the original's scales.
 *
 * New scales would differ, and so would the codes. With the original's scales, zero points and group order, each
 * decoded value gives exactly its int4 code. So a model that was converted to BF16 and back, after changes to norms,
 * embeddings or other plain tensors, loses nothing. */
#pragma once

#include "convert/plan/plan.h"

/* Makes the plan for sources[0], in BF16, and sources[1], the original with packed 4-bit integers. Both must outlive
 * it. Weights that are codes in the original become codes. All else comes from sources[0], except the quantization in
 * config.json. TSR_E_MISMATCH: the two do not have the same weights; the message names the tensor. TSR_E_UNSUPPORTED:
 * other codes. On failure *plan is empty. */
tsr_status tsr_restore_codes_plan(tsr_plan *plan, const tsr_checkpoint *const *sources, uint64_t max_shard_bytes,
                                  tsr_err *err);
