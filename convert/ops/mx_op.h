/* Declares the steps that quantize weights to MXFP4, MXFP8 and NVFP4. */
#pragma once

#include "convert/plan/plan.h"
#include "convert/schemes/dialects.h"
#include "quantize/mx_weight.h"

/* Adds the step that quantizes `weight`, X.weight [R, C] or a stack [M, R, C]. `amax` is the largest |x| of the weight
 * and of all weights that loaders run as one layer with it; it determines NVFP4's global scale and is NULL for other
 * formats. `input` is the stored global scale of the input; 0: none is stored; negative: not known yet, and the step
 * must not run before it is set. */
tsr_status tsr_plan_mx(tsr_plan *plan, const tsr_tensor *weight, const tsr_mx_scheme *scheme, const tsr_mx_names *names,
                       const tsr_amax *amax, float input, tsr_err *err);

/* Returns the `input` of a step of tsr_plan_mx. */
float tsr_mx_step_input(const tsr_step *step);
