/* Writes or removes quantization_config in config.json. All other bytes stay unchanged. */
#pragma once

#include "common/text.h"
#include "convert/plan/plan.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/weights/weights.h"
#include "quantize/fp8_block.h"

/* Returns tensor i of a plan if it stays unquantized and is not an embedding, else NULL. */
typedef const tsr_tensor *tsr_kept_fn(const void *context, size_t i);

/* Lists those of the n tensors returned by kept(context, i) that a loader would take for linear layers; a configuration
 * must list them as unquantized. `list` has room for n. Returns the number listed. */
size_t tsr_list_unquantized(tsr_kept_fn *kept, const void *context, size_t n, const tsr_tensor **list);

/* Appends the output head to this list, unless it is listed already or is quantized. Some loaders assume that an
 * unlisted head is quantized, even if embeddings are tied and the head has no tensor: vLLM for ModelOpt's dialect,
 * transformers for FP8 and compressed-tensors. `list` has room for one more. Returns the new length. */
size_t tsr_list_head(const tsr_checkpoint *checkpoint, const tsr_tensor **list, size_t n);

/* Adds the source's config.json to the plan, with quantization_config replaced by `value` (JSON). Frees `value`. */
tsr_status tsr_plan_take_quantization(tsr_plan *plan, tsr_text *value, tsr_err *err);

/* Adds the source's config.json, if there is one, to the plan, with a quantization_config of these blocks.
 * kept(context, i) returns the n tensors in sorted order; those that a loader would take for linear layers are listed
 * as unquantized. */
tsr_status tsr_plan_fp8_config(tsr_plan *plan, const tsr_fp8_block *block, tsr_dialect dialect, tsr_kept_fn *kept,
                               const void *context, size_t n, tsr_err *err);

/* Appends the checkpoint's config.json with quantization_config replaced by `value` (JSON). */
tsr_status tsr_quantization_set(tsr_text *out, const tsr_checkpoint *checkpoint, const char *value, tsr_err *err);

/* Appends the checkpoint's config.json with the modules of these tensors added to the list of unquantized modules,
 * which has a different key in each dialect. The model is quantized. */
tsr_status tsr_quantization_keep(tsr_text *out, const tsr_checkpoint *checkpoint, const tsr_tensor **tensors, size_t n,
                                 tsr_err *err);

/* Files that describe the quantization of weights, terminated by NULL: those of ModelOpt, AutoGPTQ and AutoAWQ, and
 * Tessera's own for activations. A decoded checkpoint does not contain them. */
extern const char *const tsr_quantization_files[];

/* Appends the checkpoint's config.json without its quantization. */
tsr_status tsr_fp8_config_remove(tsr_text *out, const tsr_checkpoint *checkpoint, tsr_err *err);
