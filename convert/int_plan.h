/* The plan that quantizes a checkpoint to int8 or int4, in the forms of compressed-tensors that vLLM loads. */
#ifndef TSR_CONVERT_INT_PLAN_H
#define TSR_CONVERT_INT_PLAN_H

#include "convert/plan.h"
#include "formats/calibration.h"
#include "quantize/int_weight.h"
#include "quantize/policy.h"

typedef struct tsr_int_options {
    tsr_int_scheme scheme;
    bool weight_only;            /* packed, activations in floating point; else W8A8 with azp_adj beside the model */
    bool asymmetric_activations; /* W8A8: the activations have zero points */
    const tsr_calibration *calibration; /* W8A8: static activations, one scale a tensor; NULL: dynamic, one a token */
    tsr_policy_options policy;          /* block_rows is ignored: a channel has no partner */
    uint64_t max_shard_bytes;
} tsr_int_options;

/* Makes the plan for *source; both outlive it. W8A8 adds tessera-azp.safetensors: under each weight's name the int32
 * sums of its rows, which an epilogue multiplies with the activations' zero points; of static ones the products, too.
 * TSR_E_SHAPE: a row that is not whole words, groups that do not divide it, or one so long that azp_adj times a zero
 * point leaves int32; with the nearest that would do. TSR_E_MISMATCH: the calibration lacks a layer, or a zero point.
 * On failure *plan is empty. */
tsr_status tsr_int_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_int_options *options,
                        tsr_err *err) TSR_WARN_UNUSED;

#endif
