/* Declares the quantization_config of a checkpoint with several schemes: "mixed-precision", with a group for each. */
#pragma once

#include "convert/plan/plan.h"
#include "convert/search/rules.h"
#include "quantize/policy/policy.h"

/* Adds config.json of the plan's source with a configuration in which schemes[i] (tsr_scheme) applies to tensor i.
 * Targets are full module names. The experts of a layer have one scheme and one target: an expression "re:...$" that
 * matches exactly their numbers. ModelOpt's dialect uses MIXED_PRECISION and hf_quant_config.json: it lists each
 * quantized module by its full name, and no others. `static_inputs`: FP8 per tensor has a stored scale of each
 * input. */
tsr_status tsr_plan_mixed_config(tsr_plan *plan, const uint8_t *schemes, const tsr_decision *decisions,
                                 tsr_dialect dialect, bool static_inputs, tsr_err *err);
