/* Declares the steps that quantize a weight to e4m3 with one scale per row, or one for the whole tensor. */
#pragma once

#include "convert/plan/plan.h"
#include "convert/schemes/dialects.h"
#include "quantize/fp8_block.h"

/* X.weight [R, C] -> X.weight F8_E4M3 [R, C] and X.weight_scale [R, 1], BF16 if scale_fmt says so, else F32. A row is
 * one block of quantize/fp8_block.h. */
tsr_status tsr_plan_fp8_channel(tsr_plan *plan, const tsr_tensor *weight, tsr_scale_fmt scale_fmt,
                                tsr_scale_search search, tsr_err *err);

/* X.weight [R, C] -> X.weight F8_E4M3 [R, C], X.weight_scale F32 and, unless `input` is 0, X.input_scale F32 with that
 * value. `amax` is the largest |x| of the weight, or of all weights that share its scale. `names` has the endings of
 * the scales and their rank. */
tsr_status tsr_plan_fp8_tensor(tsr_plan *plan, const tsr_tensor *weight, const tsr_mx_names *names,
                               const tsr_amax *amax, float input, tsr_err *err);
