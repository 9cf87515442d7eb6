/* Names the scales of an FP8 KV cache in a dialect (formats/weights/kv_names.h) and writes the matching configuration:
 * kv_cache_scheme for compressed-tensors, kv_cache_scheme and kv_cache_quant_algo for ModelOpt. Other dialects are left
 * unchanged. */
#ifndef TSR_CONVERT_CONFIGS_KV_SCALES_H
#define TSR_CONVERT_CONFIGS_KV_SCALES_H

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"

/* Returns the names of the tensor in the dialect: an array of *n in the arena. *n is 0 if it is not a KV-cache scale or
 * its name does not change. TSR_E_UNSUPPORTED: the scale has more than one value, which neither dialect supports. */
tsr_status tsr_kv_names(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const tsr_tensor *tensor,
                        tsr_dialect dialect, tsr_arena *arena, const char *names[2], size_t *n,
                        tsr_err *err) TSR_WARN_UNUSED;

/* Copies the KV-cache entries of the source's configuration into the plan's configuration. Both the configuration and
 * the tensor names of the plan are in this dialect. */
tsr_status tsr_plan_kv_cache(tsr_plan *plan, const tsr_weights *weights, tsr_dialect dialect,
                             tsr_err *err) TSR_WARN_UNUSED;

/* Sets a nested JSON member in the plan's text `name`: keys[n - 1] in the object keys[n - 2], and so on, becomes
 * `value` (JSON). Does nothing if the text or the object does not exist. */
tsr_status tsr_plan_edit_text(tsr_plan *plan, const char *name, const char *const *keys, size_t n, const char *value,
                              tsr_err *err) TSR_WARN_UNUSED;

#endif
