/* The second half of the policy. After each tensor has been decided by itself, what loaders run as one layer is decided
 * together. */
#ifndef TSR_QUANTIZE_POLICY_POLICY_GROUPS_H
#define TSR_QUANTIZE_POLICY_POLICY_GROUPS_H

#include "quantize/policy/policy.h"

/* Takes back decisions to quantize where another member of the fused layer, or another expert of the layer, forbids it.
 * Members that are stored joined in one tensor count as well: they have to end on block boundaries, except the last. */
tsr_status tsr_policy_join(const tsr_checkpoint *checkpoint, const tsr_policy_options *options, tsr_arena *arena,
                           tsr_decision *decisions, tsr_err *err) TSR_WARN_UNUSED;

/* Groups tensors that need one decision. first[i] is the index of the first tensor that loaders fuse with tensor i, or of the
 * first expert that shares its scheme. It is i for a tensor on its own. The array belongs to the caller. */
tsr_status tsr_policy_together(const tsr_checkpoint *checkpoint, uint32_t *first, tsr_err *err) TSR_WARN_UNUSED;

/* The first of the globs that matches the name, or NULL. */
const char *tsr_policy_matching(const char *const *globs, size_t n, const char *name);

#endif
