/* The policy's part in a plan: its decisions, and the warnings that a user must hear about them. */
#ifndef TSR_CONVERT_PLANS_POLICY_PLAN_H
#define TSR_CONVERT_PLANS_POLICY_PLAN_H

#include "convert/plan/plan.h"
#include "quantize/policy/policy.h"

/* Appends the options with which a user overrules the policy: " --include GLOB", " --exclude GLOB". */
void tsr_spell_policy(tsr_text *command, const tsr_policy_options *options);

/* tsr_policy_decide for the plan's first source, which the plan remembers. Warns of a model_type that no table has, and
 * of globs that match nothing. */
tsr_status tsr_plan_decide(tsr_plan *plan, const tsr_policy_options *options, tsr_decision *decisions,
                           tsr_err *err) TSR_WARN_UNUSED;

/* The rest of a plan once it has begun, with room for a decision for each tensor. */
typedef tsr_status tsr_plan_maker(tsr_plan *plan, const void *options, tsr_decision *decisions, tsr_err *err);

/* A plan of one source that the policy decides, from its beginning to its end. On failure *plan is empty. */
tsr_status tsr_plan_by_policy(tsr_plan *plan, const tsr_checkpoint *const *source, tsr_plan_maker *make,
                              const void *options, tsr_err *err) TSR_WARN_UNUSED;

/* Why a format has no place for a tensor that the policy would quantize. Static storage. */
const char *tsr_reason_without_place(const tsr_tensor *tensor);

/* Once every tensor has its note: warns where most of the weights that could be quantized stay as they are. */
tsr_status tsr_plan_warn_of_share(tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;

/* TSR_E_NOTHING when the policy decided and nothing at all is quantized; says why. */
tsr_status tsr_plan_check_decoded(const tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;

#endif
