/* What loaders run as one layer is decided as one: the second half of the policy, after each tensor alone. */
#ifndef TSR_QUANTIZE_POLICY_GROUPS_H
#define TSR_QUANTIZE_POLICY_GROUPS_H

#include "quantize/policy.h"

/* Takes back decisions to quantize where a seam inside a stored tensor, a fused partner or another expert of the layer
 * forbids it. */
tsr_status tsr_policy_join(const tsr_checkpoint *checkpoint, const tsr_policy_options *options, tsr_arena *arena,
                           tsr_decision *decisions, tsr_err *err) TSR_WARN_UNUSED;

/* The first of the globs that matches, or NULL. */
const char *tsr_policy_matching(const char *const *globs, size_t n, const char *name);

#endif
