/* Declares the plan that quantizes a checkpoint to several schemes by a rules file, in compressed-tensors' dialect. */
#pragma once

#include "convert/configs/kv_scales.h"
#include "convert/plan/plan.h"
#include "convert/search/rules.h"
#include "formats/weights/calibration.h"
#include "quantize/scales/scale_search.h"

typedef struct tsr_rules_options {
    const tsr_scheme_rules *rules;
    tsr_scale_search search;
    bool plain;                         /* scales follow from the largest values, even if a rule has another choice */
    const tsr_importance *importance;   /* weights of the columns in squared errors; or NULL */
    const tsr_calibration *calibration; /* measured ranges of the inputs, for nvfp4 and fp8-tensor; or NULL */
    float input_scale;                  /* static scale of all these inputs instead; 0: none */
    const char *const *include; /* array of n_include: globs of tensors that rules may quantize against the policy */
    size_t n_include;
    tsr_kv_origin kv; /* scales of an FP8 KV cache; zero-initialised: none */
    uint64_t max_shard_bytes;
} tsr_rules_options;

/* Makes the plan for *source; both inputs must outlive it. A weight gets the scheme of the first matching rule. If the
 * policy excludes it from this scheme, it stays unquantized; if the rule names it in full, that is an error. A weight
 * without a matching rule stays unquantized. TSR_E_MISMATCH: rules assign different schemes to members of a fused
 * layer; a rule names a missing weight, or one that cannot have the scheme; nvfp4 without ranges. On failure *plan is
 * empty. */
tsr_status tsr_rules_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_rules_options *options,
                          tsr_err *err);
