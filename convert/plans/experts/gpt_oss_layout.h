/* The layout of gpt-oss's releases: stacks of experts as MXFP4 in blocks, and all else as it is. Its loaders take every
 * expert of the model for codes and know no other layer in them, so that a checkpoint is all of that or it is refused. */
#ifndef TSR_CONVERT_PLANS_EXPERTS_GPT_OSS_LAYOUT_H
#define TSR_CONVERT_PLANS_EXPERTS_GPT_OSS_LAYOUT_H

#include "convert/plan/plan.h"
#include "quantize/policy/policy.h"

/* Returns true if the model_type is gpt_oss, whose loaders read this layout. */
bool tsr_is_gpt_oss(const tsr_checkpoint *checkpoint);

/* modules_to_not_convert as in the released checkpoints. */
extern const char *const tsr_gpt_oss_kept[];
extern const size_t tsr_gpt_oss_n_kept;

/* Refuses (TSR_E_UNSUPPORTED) what the layout cannot hold: another model, experts one by one, experts that are kept, other
 * layers that are quantized. The checkpoint is a view in which plain stacks are [experts, out, in]. */
tsr_status tsr_gpt_oss_check(const tsr_checkpoint *checkpoint, const tsr_decision *decisions,
                             tsr_err *err) TSR_WARN_UNUSED;

/* Warns, where the plan's source is such a model: its experts are written one by one, which no loader reads. */
tsr_status tsr_gpt_oss_warn(tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;

#endif
