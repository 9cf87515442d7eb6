/* Checks the layout of gpt-oss releases: stacks of experts in MXFP4 with blocks, all other tensors unquantized. Its
 * loaders assume that every expert of the model is MXFP4 and support no other quantized layer, so any other checkpoint
 * is rejected. */
#pragma once

#include "convert/plan/plan.h"
#include "quantize/policy/policy.h"

/* Returns true if the model_type is gpt_oss, whose loaders read this layout. */
bool tsr_is_gpt_oss(const tsr_checkpoint *checkpoint);

/* The modules_to_not_convert of the released checkpoints. */
extern const char *const tsr_gpt_oss_kept[];
extern const size_t tsr_gpt_oss_n_kept;

/* Rejects (TSR_E_UNSUPPORTED) what the layout cannot hold: another model, experts stored one by one, unquantized
 * experts, other quantized layers. The checkpoint is a view in which plain stacks are [experts, out, in]. */
tsr_status tsr_gpt_oss_check(const tsr_checkpoint *checkpoint, const tsr_decision *decisions, tsr_err *err);

/* Warns if the plan's source is such a model: its experts are written one by one, which no loader reads. */
tsr_status tsr_gpt_oss_warn(tsr_plan *plan, tsr_err *err);
