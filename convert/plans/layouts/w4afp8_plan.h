/* Declares the plan that quantizes a checkpoint to SGLang's w4afp8: routed experts in int4, other layers in block
 * FP8. */
#pragma once

#include "convert/configs/kv_scales.h"
#include "convert/plan/plan.h"
#include "formats/weights/calibration.h"
#include "formats/weights/weights.h"
#include "quantize/fp8_block.h"
#include "quantize/int_weight.h"
#include "quantize/policy/policy.h"

/* Exactly one of `calibration` and `input_scale` is given. */
typedef struct tsr_w4afp8_options {
    tsr_int_scheme experts;
    tsr_fp8_block block;
    const tsr_importance *importance;   /* weights of the columns in squared errors; or NULL */
    const tsr_calibration *calibration; /* measured ranges of the experts' inputs */
    float input_scale;                  /* static scale of all experts' inputs, a factor */
    tsr_policy_options policy;          /* only its globs are used */
    tsr_kv_origin kv;                   /* scales of an FP8 KV cache, which this dialect rejects */
    uint64_t max_shard_bytes;
} tsr_w4afp8_options;

/* Returns true for a weight of codes that the format has in this form. */
bool tsr_w4afp8_has(const tsr_weight *weight);

/* Makes the plan for *source. `source` and `options` must outlive it. An expert whose measured inputs are all 0 gets
 * the largest scale of its layer, because SGLang uses the largest for all experts. TSR_E_UNSUPPORTED: the checkpoint is
 * quantized already, or has no separate routed experts. TSR_E_SHAPE: groups do not divide a row. TSR_E_MISMATCH: the
 * calibration lacks a layer, or has an int8 scale instead of a range. On failure *plan is empty. */
tsr_status tsr_w4afp8_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_w4afp8_options *options,
                           tsr_err *err);
