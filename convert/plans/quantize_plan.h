/* Declares the plan that quantizes a checkpoint to block FP8. */
#pragma once

#include "convert/configs/kv_scales.h"
#include "convert/plan/plan.h"
#include "formats/weights/weights.h"
#include "quantize/fp8_block.h"
#include "quantize/policy/policy.h"

typedef struct tsr_quantize_options {
    tsr_fp8_block block;
    const tsr_importance *importance; /* weights of the columns in squared errors; or NULL */
    tsr_dialect dialect;
    tsr_policy_options policy; /* block_rows is taken from `block` */
    tsr_kv_origin kv;          /* scales of an FP8 KV cache; zero-initialised: none */
    uint64_t max_shard_bytes;
} tsr_quantize_options;

/* Makes the plan for *source. `source` and `options` must outlive it. TSR_E_UNSUPPORTED: the checkpoint is quantized
 * already. On failure *plan is empty. */
tsr_status tsr_quantize_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_quantize_options *options,
                             tsr_err *err);

/* Returns TSR_E_UNSUPPORTED for a checkpoint that is quantized already, by its configuration or its dtypes. */
tsr_status tsr_quantize_check_source(const tsr_checkpoint *source, tsr_err *err);
