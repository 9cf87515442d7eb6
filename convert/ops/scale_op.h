/* What conversions of scaled weights share: reading a rectangle, carrying scales over, taking the quantization out of
 * config.json or writing it there. */
#ifndef TSR_CONVERT_OPS_SCALE_OP_H
#define TSR_CONVERT_OPS_SCALE_OP_H

#include "convert/engine/plan.h"
#include "formats/model/weights.h"
#include "quantize/fp8_decode.h"

/* The window of the scale that decoding `rect` needs (rect->scales once it is read). */
tsr_window tsr_scale_window(const tsr_fp8_rect *rect);

/* Adds a step that writes the weight's scales as FP32 under `name`, exactly, without padding of the grid. */
tsr_status tsr_plan_scales(tsr_plan *plan, const tsr_weight *weight, const char *name, tsr_err *err) TSR_WARN_UNUSED;

#endif
