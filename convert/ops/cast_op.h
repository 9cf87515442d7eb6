/* The steps that decode weights of codes to floating point. */
#ifndef TSR_CONVERT_OPS_CAST_OP_H
#define TSR_CONVERT_OPS_CAST_OP_H

#include "convert/engine/plan.h"
#include "formats/model/weights.h"

/* Codes and all that stands with them -> the values, under their name and in their shape, as `dtype` (BF16, F16, F32). */
tsr_status tsr_plan_cast(tsr_plan *plan, const tsr_weight *weight, tsr_dtype dtype, tsr_err *err) TSR_WARN_UNUSED;

/* What tsr_plan_cast carries out, a family of kinds each. The step's params are the weight, whose `values` is the output;
 * its inputs are the codes, the scale and, where there are such, the zero point, the global scale and the order. */
extern const tsr_op tsr_cast_fp8_op, tsr_cast_integers_op, tsr_cast_mx_op, tsr_cast_gptq_op;

#endif
