/* The step that decodes a weight of codes to floating point. */
#ifndef TSR_CONVERT_OPS_CAST_OP_H
#define TSR_CONVERT_OPS_CAST_OP_H

#include "convert/engine/plan.h"
#include "formats/model/weights.h"

/* Codes and all that stands with them -> the values, under their name and in their shape, as `dtype` (BF16, F16, F32). */
tsr_status tsr_plan_cast(tsr_plan *plan, const tsr_weight *weight, tsr_dtype dtype, tsr_err *err) TSR_WARN_UNUSED;

#endif
