/* The step that quantizes a weight to e4m3 with one scale a row. */
#ifndef TSR_CONVERT_FP8_CHANNEL_OP_H
#define TSR_CONVERT_FP8_CHANNEL_OP_H

#include "convert/plan.h"

/* X.weight [R, C] -> X.weight F8_E4M3 [R, C] and X.weight_scale F32 [R, 1]: a row is one block of quantize/fp8_block.h.
 * `search`: the scale of least squared error. */
tsr_status tsr_plan_fp8_channel(tsr_plan *plan, const tsr_tensor *weight, bool search, tsr_err *err) TSR_WARN_UNUSED;

#endif
