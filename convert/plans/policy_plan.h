/* Applies the quantization policy to a plan: decisions and warnings. */
#pragma once

#include "convert/plan/plan.h"
#include "quantize/policy/policy.h"

/* Appends the options that override the policy: " --include GLOB", " --exclude GLOB". */
void tsr_spell_policy(tsr_text *command, const tsr_policy_options *options);

/* Runs tsr_policy_decide for the plan's first source, and records its results in the plan. Warns about a model_type
 * that no table has and about globs that match nothing. */
tsr_status tsr_plan_decide(tsr_plan *plan, const tsr_policy_options *options, tsr_decision *decisions, tsr_err *err);

/* The tensors of a checkpoint and a decision for each, as the context of a function that takes an index. */
typedef struct tsr_decided {
    const tsr_checkpoint *c;
    const tsr_decision *decisions;
} tsr_decided;

/* Completes a plan that has begun; `decisions` has an element per tensor. */
typedef tsr_status tsr_plan_maker(tsr_plan *plan, const void *options, tsr_decision *decisions, tsr_err *err);

/* Makes a whole plan for one source by the policy. On failure *plan is empty. */
tsr_status tsr_plan_by_policy(tsr_plan *plan, const tsr_checkpoint *const *source, tsr_plan_maker *make,
                              const void *options, tsr_err *err);

/* Returns the reason why a format cannot hold a tensor that the policy would quantize. Static storage. */
const char *tsr_reason_without_place(const tsr_tensor *tensor);

/* Warns if most of the weights that could be quantized stay unquantized. Call it when every tensor has its note. */
tsr_status tsr_plan_warn_of_share(tsr_plan *plan, tsr_err *err);

/* TSR_E_NOTHING if the policy decided that nothing is quantized; the message has the reason. */
tsr_status tsr_plan_check_decoded(const tsr_plan *plan, tsr_err *err);
