/* The second half of the policy. After single tensors have been decided, layers that loaders fuse get a common
 * decision. */
#pragma once

#include "quantize/policy/policy.h"

/* Revokes decisions to quantize if another member of the fused layer, or another expert of the layer, excludes it. This
 * includes members that are stored in one joined tensor: they must end on block boundaries, except the last. */
tsr_status tsr_policy_join(const tsr_checkpoint *checkpoint, const tsr_policy_options *options, tsr_arena *arena,
                           tsr_decision *decisions, tsr_err *err);

/* Groups tensors that need one decision. first[i], the caller's array, is the index of the first tensor that loaders
 * fuse with tensor i, or of the first expert that shares its scheme. It is i for a single tensor. */
tsr_status tsr_policy_together(const tsr_checkpoint *checkpoint, uint32_t *first, tsr_err *err);
