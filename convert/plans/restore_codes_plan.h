/* The plan that makes the int4 checkpoint again that a BF16 checkpoint came from, with that one's scales.
 *
 * Scales found anew would be others, and so would be the codes; with the original's scales, zero points and order each
 * value of int4, decoded to BF16, gives its very code. So a model that went to BF16 and back, with norms, embeddings or
 * other plain tensors changed on the way, loses nothing. */
#ifndef TSR_CONVERT_PLANS_RESTORE_CODES_PLAN_H
#define TSR_CONVERT_PLANS_RESTORE_CODES_PLAN_H

#include "convert/plan/plan.h"

/* Makes the plan for sources[0], in BF16, and sources[1], the original: packed integers of 4 bits. They outlive it. What
 * is codes in the original becomes codes, all else is the first's, as is config.json but for its quantization.
 * TSR_E_MISMATCH, naming the tensor: the two do not have the same weights. TSR_E_UNSUPPORTED: other codes. On failure *plan
 * is empty. */
tsr_status tsr_restore_codes_plan(tsr_plan *plan, const tsr_checkpoint *const *sources, uint64_t max_shard_bytes,
                                  tsr_err *err) TSR_WARN_UNUSED;

#endif
