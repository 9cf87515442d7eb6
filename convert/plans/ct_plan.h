/* The plan that quantizes a checkpoint by rows or groups, to int8, int4 or e4m3, in the forms of compressed-tensors
 * that vLLM loads. */
#ifndef TSR_CONVERT_PLANS_CT_PLAN_H
#define TSR_CONVERT_PLANS_CT_PLAN_H

#include "convert/plan/plan.h"
#include "convert/schemes/schemes.h"
#include "formats/weights/calibration.h"
#include "quantize/int_weight.h"
#include "quantize/policy/policy.h"

/* Properties that a packed weight keeps when its codes are moved, not computed. */
typedef struct tsr_ct_kept {
    tsr_dtype scale_dtype;
    const tsr_tensor *order; /* weight_g_idx to be; NULL: its groups are in the order of its columns */
} tsr_ct_kept;

typedef struct tsr_ct_options {
    tsr_scheme id;                      /* its form is FP8_ROWS, W8A8 or PACKED */
    tsr_int_scheme scheme;              /* FP8_ROWS: only .search and .scale_dtype, F32 or BF16, mean something */
    bool asymmetric_activations;        /* W8A8: the activations have zero points */
    const tsr_calibration *calibration; /* W8A8: static activations, one scale a tensor; NULL: dynamic, one a token */
    /* PACKED: fills in what the weight brings along; false: nothing. NULL: no weight does. */
    bool (*kept)(const void *context, const tsr_tensor *weight, tsr_ct_kept *kept);
    const void *context;
    bool ordered;              /* PACKED: some bring an order */
    tsr_policy_options policy; /* block_rows is ignored: a row never shares a scale */
    uint64_t max_shard_bytes;
} tsr_ct_options;

/* Makes the plan for *source; both outlive it. W8A8 adds tessera-azp.safetensors: for each X.weight, X.azp_adj has
 * the int32 sums of its rows, which an epilogue multiplies with the activations' zero points; with static activations,
 * X.azp_with_adj has the products, too. None of these names is one of
 * the model's, so that loaders that read every *.safetensors do not mistake them.
 * TSR_E_SHAPE: a row that is not whole words, groups that do not divide it, or one so long that azp_adj times a zero
 * point leaves int32; with the nearest that would do. TSR_E_MISMATCH: the calibration lacks a layer, or a zero point.
 * On failure *plan is empty. */
tsr_status tsr_ct_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_ct_options *options,
                       tsr_err *err) TSR_WARN_UNUSED;

/* Returns true if such a plan quantizes this tensor, given that the policy would. It does not if the tensor is a stack of
 * experts, for which the format has no place, if its name does not end in .weight, or if tsr_ct_plan would refuse its
 * shape. */
bool tsr_ct_takes(const tsr_checkpoint *source, const tsr_tensor *t, tsr_scheme id);

#endif
