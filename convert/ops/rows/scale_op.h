/* Declares helpers of conversions of scaled weights: windows of scales, and steps that copy scales as FP32. */
#pragma once

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"
#include "quantize/fp8_decode.h"

/* Returns the window of the scales that decoding `rect` needs. The caller reads it and sets rect->scales. */
tsr_window tsr_scale_window(const tsr_fp8_rect *rect);

/* Adds a step that writes the weight's scales as FP32 under `name`, exactly and without padding. */
tsr_status tsr_plan_scales(tsr_plan *plan, const tsr_weight *weight, const char *name, tsr_err *err);
