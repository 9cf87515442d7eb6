/* Declares the steps that quantize a plain or FP8 weight to block FP8. */
#pragma once

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"
#include "quantize/fp8_block.h"

/* Returns the name of the scale: X.weight -> X.weight_scale_inv or X.weight_scale; fused experts without that ending ->
 * NAME_scale_inv or NAME_scale. In the plan's arena; NULL when memory is exhausted. */
const char *tsr_fp8_scale_name(tsr_plan *plan, const char *weight, tsr_dialect dialect);

/* Adds the step that makes codes, under the weight's own name, and FP32 scales. A plain weight is BF16, F16 or F32 of
 * rank 2 or 3. A scaled weight is decoded to FP32 first. *weight and *scheme are copied. */
tsr_status tsr_plan_quantize(tsr_plan *plan, const tsr_weight *weight, const tsr_fp8_block *scheme, tsr_dialect dialect,
                             tsr_err *err);

/* Adds a step that writes nothing and only measures. It repeats what tsr_plan_quantize does to this scaled weight
 * (`scheme` NULL: uses the weight's codes as they are) and compares the result with `original`, a plain tensor of the
 * same shape. */
tsr_status tsr_plan_measure(tsr_plan *plan, const tsr_weight *weight, const tsr_fp8_block *scheme,
                            const tsr_tensor *original, tsr_err *err);
