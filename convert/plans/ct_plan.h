/* Declares the plan that quantizes a checkpoint by rows or groups to int8, int4 or e4m3, in the formats of
 * compressed-tensors that vLLM loads. */
#pragma once

#include "convert/configs/kv_scales.h"
#include "convert/plan/plan.h"
#include "convert/schemes/schemes.h"
#include "formats/weights/calibration.h"
#include "quantize/int_weight.h"
#include "quantize/policy/policy.h"

/* Properties that a packed weight keeps when its codes are moved, not computed. */
typedef struct tsr_ct_kept {
    tsr_dtype scale_dtype;
    const tsr_tensor *order; /* the future weight_g_idx; NULL: groups are consecutive columns */
} tsr_ct_kept;

typedef struct tsr_ct_options {
    tsr_scheme id;                      /* a scheme of the form FP8_ROWS, W8A8 or PACKED */
    tsr_int_scheme scheme;              /* FP8_ROWS uses only .search and .scale_dtype, F32 or BF16 */
    const tsr_importance *importance;   /* weights of the columns in squared errors; or NULL */
    bool asymmetric_activations;        /* W8A8: the activations have zero points */
    const tsr_calibration *calibration; /* W8A8: static activations, one scale per tensor; NULL: dynamic, one per
                                         * token */
    /* PACKED: fills in the properties that a weight keeps. Returns false if it keeps none. NULL: no weight does. */
    bool (*kept)(const void *context, const tsr_tensor *weight, tsr_ct_kept *kept);
    const void *context;
    bool ordered;              /* PACKED: some weights have a group order */
    tsr_policy_options policy; /* block_rows is ignored: rows never share a scale */
    tsr_kv_origin kv;          /* scales of an FP8 KV cache; zero-initialised: none */
    uint64_t max_shard_bytes;
} tsr_ct_options;

/* Makes the plan for *source; both outlive it. W8A8 adds tessera-azp.safetensors: for each X.weight, X.azp_adj has the
 * int32 sums of its rows, which a kernel multiplies by the activations' zero points. With static activations,
 * X.azp_with_adj has the products. None of these names occurs in the model, so loaders that read every *.safetensors
 * ignore them. TSR_E_SHAPE: a row is not whole words, groups do not divide it, or it is so long that azp_adj times a
 * zero point overflows int32; the message has the nearest valid size. TSR_E_MISMATCH: the calibration lacks a layer, or
 * a zero point. On failure *plan is empty. */
tsr_status tsr_ct_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_ct_options *options,
                       tsr_err *err);

/* Rejects a tensor of rank 2 whose rows the scheme cannot store, as described for tsr_ct_plan. `err` may be NULL. */
tsr_status tsr_ct_check_shape(const tsr_checkpoint *source, const tsr_tensor *t, tsr_scheme id,
                              const tsr_int_scheme *scheme, tsr_err *err);

/* Returns true if such a plan quantizes this tensor, provided that the policy would. Returns false for a stack of
 * experts, which the format cannot hold, for a name that does not end in .weight, and for a shape that tsr_ct_plan
 * would reject. */
bool tsr_ct_takes(const tsr_checkpoint *source, const tsr_tensor *t, tsr_scheme id);
