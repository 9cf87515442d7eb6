/* Writes a quantization_config, of block FP8 or any other, into config.json, or takes it out; all other bytes stay. */
#ifndef TSR_CONVERT_CONFIGS_FP8_CONFIG_H
#define TSR_CONVERT_CONFIGS_FP8_CONFIG_H

#include "common/text.h"
#include "convert/plan/plan.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/weights/weights.h"
#include "quantize/fp8_block.h"

/* The i-th tensor of a plan, if it is one that stays as it is, and no embedding; else NULL. */
typedef const tsr_tensor *tsr_kept_fn(const void *context, size_t i);

/* Lists those of the n tensors named by kept(context, i) that a loader would take for linear layers: a configuration
 * lists them as unquantized. `list` has room for n; returns the number listed. */
size_t tsr_list_unquantized(tsr_kept_fn *kept, const void *context, size_t n, const tsr_tensor **list);

/* Appends the output head to this list, unless it is there or is quantized. Some loaders take a head that is not listed
 * for quantized, also where embeddings are tied and no tensor exists for it: vLLM in ModelOpt's dialect, transformers in
 * that of compressed-tensors. `list` has room for one more; returns how many it has. */
size_t tsr_list_head(const tsr_checkpoint *checkpoint, const tsr_tensor **list, size_t n);

/* Adds to the plan the config.json of its source with `value` (JSON, which is freed) as its quantization_config, in place
 * of one that it has. */
tsr_status tsr_plan_take_quantization(tsr_plan *plan, tsr_text *value, tsr_err *err) TSR_WARN_UNUSED;

/* Adds to the plan the config.json of its source, where there is one, with the quantization_config of these blocks in
 * place of one that it has. Of the n tensors that kept(context, i) names, in sorted order, those that a loader would
 * take for linear layers are listed as unquantized. */
tsr_status tsr_plan_fp8_config(tsr_plan *plan, const tsr_fp8_block *block, tsr_dialect dialect, tsr_kept_fn *kept,
                               const void *context, size_t n, tsr_err *err) TSR_WARN_UNUSED;

/* Appends the checkpoint's config.json with `value` (JSON) as its quantization_config, in place of one that it has. */
tsr_status tsr_quantization_set(tsr_text *out, const tsr_checkpoint *checkpoint, const char *value,
                                tsr_err *err) TSR_WARN_UNUSED;

/* Appends the checkpoint's config.json with the modules of these tensors added to the list of those that stay
 * unquantized, whatever it is called there. The model is quantized. */
tsr_status tsr_quantization_keep(tsr_text *out, const tsr_checkpoint *checkpoint, const tsr_tensor **tensors, size_t n,
                                 tsr_err *err) TSR_WARN_UNUSED;

/* Files that state how weights are quantized, up to NULL: ModelOpt's, AutoGPTQ's, AutoAWQ's, and Tessera's own for
 * activations. A decoded checkpoint leaves them out. */
extern const char *const tsr_quantization_files[];

/* Appends the checkpoint's config.json without its quantization. */
tsr_status tsr_fp8_config_remove(tsr_text *out, const tsr_checkpoint *checkpoint, tsr_err *err) TSR_WARN_UNUSED;

#endif
