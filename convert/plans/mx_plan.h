/* Declares the plan that quantizes a checkpoint to MXFP4, MXFP8, NVFP4, or FP8 with one scale per tensor.
 *
 * The global scale of NVFP4 and the scale of FP8 per tensor are shared by all tensors that loaders run as one layer
 * (q, k, v; gate, up). They follow from the largest amax of these tensors, which are therefore read twice
 * (tsr_amax). */
#pragma once

#include "common/block.h"
#include "convert/configs/kv_scales.h"
#include "convert/configs/mx_config.h"
#include "convert/ops/mx_op.h"
#include "convert/plan/plan.h"
#include "convert/schemes/schemes.h"
#include "formats/weights/calibration.h"
#include "quantize/mx_weight.h"
#include "quantize/policy/policy.h"

typedef struct tsr_mx_options {
    tsr_scheme scheme; /* one of tsr_scheme_is_of_mx_plan */
    tsr_dialect dialect;
    const tsr_mx_rule *rule; /* NULL: the default of the dialect's tool */
    tsr_scale_search search;
    const tsr_importance *importance;   /* weights of the columns in squared errors; or NULL */
    const tsr_calibration *calibration; /* measured ranges of the layers' inputs, for schemes with `inputs`; or NULL */
    float input_scale;                  /* static scale of all inputs instead, a factor; 0: none. TSR_SCHEME_NVFP4, and
                                         * FP8 in ModelOpt's dialect, need one of both */
    tsr_policy_options policy;          /* only its globs are used */
    tsr_block native_block;             /* DeepSeek-V4's dialect: block size of the FP8 layers; 0 x 0: 128 x 128 */
    tsr_kv_origin kv;                   /* scales of an FP8 KV cache; zero-initialised: none */
    uint64_t max_shard_bytes;
} tsr_mx_options;

/* Returns true if the scheme's activations need measured ranges. */
bool tsr_mx_needs_ranges(tsr_scheme scheme);

/* A scheme in a dialect: arithmetic of the dialect's tool, tensor names, and the configuration without its list of
 * unquantized modules. */
typedef struct tsr_mx_description {
    tsr_mx_scheme scheme; /* not for FP8 per tensor, whose config.group is 0 */
    const tsr_mx_names *names;
    tsr_mx_config config;
} tsr_mx_description;

/* `static_inputs`: for FP8 per tensor, a scale of each input is stored; otherwise inputs are scaled at run time. */
tsr_mx_description tsr_mx_describe(tsr_scheme scheme, tsr_dialect dialect, bool static_inputs);

/* Returns the dialect in which the loaders of this model read the scheme: gpt-oss' own for MXFP4 of gpt-oss, else
 * compressed-tensors. */
tsr_dialect tsr_mx_default_dialect(tsr_scheme scheme, const tsr_checkpoint *source);

/* Makes the plan for *source. `source` and `options` must outlive it. TSR_E_MISMATCH: the calibration lacks a layer, or
 * has an int8 scale instead of a range. On failure *plan is empty. */
tsr_status tsr_mx_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_mx_options *options,
                       tsr_err *err);
