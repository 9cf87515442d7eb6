/* The plan that quantizes a checkpoint to several schemes at once, as a rules file says, in compressed-tensors' dialect. */
#ifndef TSR_CONVERT_SEARCH_RULES_PLAN_H
#define TSR_CONVERT_SEARCH_RULES_PLAN_H

#include "convert/plan/plan.h"
#include "convert/search/rules.h"
#include "formats/weights/calibration.h"

typedef struct tsr_rules_options {
    const tsr_scheme_rules *rules;
    bool search;                        /* scales of least squared error */
    const tsr_calibration *calibration; /* ranges of the inputs, for nvfp4; or NULL */
    uint64_t max_shard_bytes;
} tsr_rules_options;

/* Makes the plan for *source; both outlive it. A weight gets the scheme of the first rule that fits it, unless the
 * policy keeps it from this scheme: then it stays as it is, and a rule that names it in full is refused. What no rule
 * fits stays as it is. TSR_E_MISMATCH: rules part what loaders run as one layer or by one scheme; a rule names what is
 * not there, or what cannot be quantized so; nvfp4 without ranges. On failure *plan is empty. */
tsr_status tsr_rules_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_rules_options *options,
                          tsr_err *err) TSR_WARN_UNUSED;

#endif
