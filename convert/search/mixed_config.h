/* The quantization_config of a checkpoint in several schemes: "mixed-precision", with a group for each of them. */
#ifndef TSR_CONVERT_SEARCH_MIXED_CONFIG_H
#define TSR_CONVERT_SEARCH_MIXED_CONFIG_H

#include "convert/plan/plan.h"
#include "convert/search/rules.h"
#include "quantize/policy/policy.h"

/* Adds config.json of the plan's source with the configuration of schemes[i] (tsr_scheme) for its i-th tensor. Targets are
 * modules' full names; of the experts of a layer, which have one scheme, an expression from "re:" to "$" that fits the
 * numbers of the experts and nothing else. In ModelOpt's dialect MIXED_PRECISION, with hf_quant_config.json: each module
 * by its full name, and nothing of what stays. */
tsr_status tsr_plan_mixed_config(tsr_plan *plan, const uint8_t *schemes, const tsr_decision *decisions,
                                 tsr_dialect dialect, tsr_err *err) TSR_WARN_UNUSED;

#endif
