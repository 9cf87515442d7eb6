/* Helpers of conversions of scaled weights: reading a rectangle, carrying scales over, and removing or writing
 * quantization_config. */
#ifndef TSR_CONVERT_OPS_ROWS_SCALE_OP_H
#define TSR_CONVERT_OPS_ROWS_SCALE_OP_H

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"
#include "quantize/fp8_decode.h"

/* The window of the scale that decoding `rect` needs (rect->scales once it is read). */
tsr_window tsr_scale_window(const tsr_fp8_rect *rect);

/* Adds a step that writes the weight's scales as FP32 under `name`, exactly, without padding of the grid. */
tsr_status tsr_plan_scales(tsr_plan *plan, const tsr_weight *weight, const char *name, tsr_err *err) TSR_WARN_UNUSED;

#endif
