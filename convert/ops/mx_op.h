/* The steps that quantize weights to MXFP4, MXFP8 and NVFP4. */
#ifndef TSR_CONVERT_OPS_MX_OP_H
#define TSR_CONVERT_OPS_MX_OP_H

#include "convert/plan/plan.h"
#include "convert/schemes/dialects.h"
#include "quantize/mx_weight.h"

/* Adds the step that quantizes `weight`, X.weight [R, C], or a stack [M, R, C]. `amax` is that of the weight and of all that loaders run as one
 * layer with it: NVFP4's global scale follows from it; NULL for the others. `input` is the input's global scale, as it
 * is stored; 0: none is; negative: it is not known yet, and there is no running the step before it is. */
tsr_status tsr_plan_mx(tsr_plan *plan, const tsr_tensor *weight, const tsr_mx_scheme *scheme, const tsr_mx_names *names,
                       const tsr_amax *amax, float input, tsr_err *err) TSR_WARN_UNUSED;

/* Returns the `input` of a step of tsr_plan_mx. */
float tsr_mx_step_input(const tsr_step *step);

#endif
