/* Declares the step that decodes a weight to floating point. */
#pragma once

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"

/* Adds the step that decodes a weight to `dtype` (BF16, F16, F32), with the name and shape of its values. */
tsr_status tsr_plan_cast(tsr_plan *plan, const tsr_weight *weight, tsr_dtype dtype, tsr_err *err);
