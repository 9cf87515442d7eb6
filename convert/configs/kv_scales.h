/* Names or makes the scales of an FP8 KV cache in a dialect (formats/weights/kv_names.h) and writes the configuration:
 * kv_cache_scheme for compressed-tensors, kv_cache_scheme and kv_cache_quant_algo for ModelOpt. Other dialects are left
 * unchanged. */
#pragma once

#include "convert/plan/plan.h"
#include "formats/weights/calibration.h"
#include "formats/weights/weights.h"

/* Where scales of a KV cache come from, for a source that has none. */
typedef struct tsr_kv_origin {
    float scale;                   /* the scale of all layers; 0: not given */
    const tsr_calibration *ranges; /* ranges of X.k_cache and X.v_cache for the attention X; NULL: not given */
} tsr_kv_origin;

/* Returns the names of the tensor in the dialect: an array of *n in the arena. *n is 0 if it is not a KV-cache scale or
 * its name does not change. TSR_E_UNSUPPORTED: the scale has more than one value, which neither dialect supports.
 * TSR_E_VALUE: it is not a positive finite number; it is read for this. */
tsr_status tsr_kv_names(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const tsr_tensor *tensor,
                        tsr_dialect dialect, tsr_arena *arena, const char *names[2], size_t *n, tsr_err *err);

/* Copies the KV-cache entries of the source's configuration into the plan's configuration. Both the configuration and
 * the tensor names of the plan are in this dialect. */
tsr_status tsr_plan_kv_cache(tsr_plan *plan, const tsr_weights *weights, tsr_dialect dialect, tsr_err *err);

/* Adds a scale of keys and one of values for each attention layer of the first source, which is not quantized. Does
 * nothing if `origin` has neither member. Called before the files are packed. TSR_E_USAGE: the dialect has no place for
 * them. TSR_E_UNSUPPORTED: the model has no layer with k_proj and v_proj. TSR_E_MISMATCH: a layer has no range. */
tsr_status tsr_plan_kv_scales(tsr_plan *plan, const tsr_kv_origin *origin, tsr_dialect dialect, tsr_err *err);

/* States the FP8 KV cache in the plan's configuration, if `origin` has a member. Called after it is written. */
tsr_status tsr_plan_state_kv_scales(tsr_plan *plan, const tsr_kv_origin *origin, tsr_dialect dialect, tsr_err *err);

/* Spells the origin for the plan's command: " --kv-scale 1", or nothing. */
void tsr_spell_kv_scales(tsr_text *out, const tsr_kv_origin *origin);
