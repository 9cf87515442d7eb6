/* Scales of an FP8 KV cache in the names of a dialect (formats/weights/kv_names.h), and what its configuration says of the
 * cache: kv_cache_scheme in compressed-tensors, that and kv_cache_quant_algo in ModelOpt. Elsewhere all stays. */
#ifndef TSR_CONVERT_CONFIGS_KV_SCALES_H
#define TSR_CONVERT_CONFIGS_KV_SCALES_H

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"

/* The names that the tensor has in the dialect, *n of them in the arena; 0: it is no such scale, or its name stays.
 * TSR_E_UNSUPPORTED: a scale of more than one value, for which neither dialect has a place. */
tsr_status tsr_kv_names(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const tsr_tensor *tensor,
                        tsr_dialect dialect, tsr_arena *arena, const char *names[2], size_t *n,
                        tsr_err *err) TSR_WARN_UNUSED;

/* States in the plan's configuration what the source (of these weights) states of its KV cache. The plan's configuration is
 * in this dialect, and the names are. */
tsr_status tsr_plan_kv_cache(tsr_plan *plan, const tsr_weights *weights, tsr_dialect dialect,
                             tsr_err *err) TSR_WARN_UNUSED;

/* Sets the member keys[n - 1], of the object keys[n - 2] and so on, in the plan's text of this name to `value` (JSON).
 * Where there is no such text or object, nothing. */
tsr_status tsr_plan_edit_text(tsr_plan *plan, const char *name, const char *const *keys, size_t n, const char *value,
                              tsr_err *err) TSR_WARN_UNUSED;

#endif
