/* The plan that quantizes a checkpoint to MXFP4, MXFP8 or NVFP4, in the dialect of whoever is to load it.
 *
 * NVFP4 has a global scale over each tensor, the same for all that loaders run as one layer (q, k, v; gate, up). It
 * follows from their largest amax, so these weights are read twice (tsr_amax). */
#ifndef TSR_CONVERT_PLANS_MX_PLAN_H
#define TSR_CONVERT_PLANS_MX_PLAN_H

#include "common/block.h"
#include "convert/engine/plan.h"
#include "convert/ops/mx_op.h"
#include "convert/plans/mx_config.h"
#include "formats/model/calibration.h"
#include "quantize/mx_weight.h"
#include "quantize/policy.h"

typedef enum tsr_mx_target {
    TSR_MX_NVFP4,
    TSR_MX_NVFP4_WEIGHT_ONLY,
    TSR_MX_MXFP4,
    TSR_MX_MXFP4_WEIGHT_ONLY,
    TSR_MX_MXFP8,
    TSR_MX_MXFP8_WEIGHT_ONLY,
    TSR_MX_TARGETS,
} tsr_mx_target;

typedef struct tsr_mx_options {
    tsr_mx_target target;
    tsr_mx_dialect dialect;
    const tsr_mx_rule *rule;            /* NULL: what the dialect's producer uses */
    bool search;                        /* scales of least squared error */
    const tsr_calibration *calibration; /* ranges of the layers' inputs: what TSR_MX_NVFP4 needs; else NULL */
    tsr_policy_options policy;          /* only its globs count */
    tsr_block native_block;             /* DeepSeek-V4's dialect: of the FP8 beside the experts; 0 x 0: 128 x 128 */
    uint64_t max_shard_bytes;
} tsr_mx_options;

/* Whether the target's activations need ranges that were measured. */
bool tsr_mx_needs_ranges(tsr_mx_target target);

/* What a target is in a dialect: its arithmetic as the dialect's producer has it, the names of its tensors, and its
 * configuration, but for the list of what is unquantized. */
typedef struct tsr_mx_description {
    tsr_mx_scheme scheme;
    const tsr_mx_names *names;
    tsr_mx_config config;
} tsr_mx_description;

tsr_mx_description tsr_mx_describe(tsr_mx_target target, tsr_mx_dialect dialect);

/* TSR_E_USAGE for a target in a dialect that no loader reads, with those that are read, and by whom. */
tsr_status tsr_mx_check_dialect(tsr_mx_target target, tsr_mx_dialect dialect, tsr_err *err) TSR_WARN_UNUSED;

/* The dialect in which the loaders of this model read the target: gpt-oss' own for MXFP4 of gpt-oss, else
 * compressed-tensors. */
tsr_mx_dialect tsr_mx_default_dialect(tsr_mx_target target, const tsr_checkpoint *source);

/* "compressed-tensors" and so on. Static storage. */
const char *tsr_mx_dialect_name(tsr_mx_dialect dialect);

/* Makes the plan for *source. `source` and `options` outlive it. TSR_E_MISMATCH: the calibration lacks a layer, or has
 * an int8 scale in place of a range. On failure *plan is empty. */
tsr_status tsr_mx_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_mx_options *options,
                       tsr_err *err) TSR_WARN_UNUSED;

#endif
