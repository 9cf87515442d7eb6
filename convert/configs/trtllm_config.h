/* Tensor names and config.json of TensorRT-LLM checkpoints.
 *
 * Supported are the Llama, Mistral and Qwen2/3 families (docs/source/legacy/architecture/checkpoint.md,
 * models/llama/convert.py, models/qwen/convert.py). */
#pragma once

#include "common/text.h"
#include "formats/checkpoint/checkpoint.h"

/* Returns true if the names of this model_type are known. */
bool tsr_trtllm_knows(const char *model_type);

/* Returns TensorRT-LLM's name of a tensor, in `arena`: "model.layers.3.self_attn.q_proj.weight" is part 0 of 3 of
 * "transformer.layers.3.attention.qkv.weight". Sets *part and *parts. Returns NULL if it has no name or memory is
 * exhausted. */
const char *tsr_trtllm_name(const char *name, tsr_arena *arena, size_t *part, size_t *parts);

/* The quantization of a checkpoint. */
typedef struct tsr_trtllm_quantization {
    const char *algorithm;          /* "W8A16", "W4A16", "W4A16_GPTQ" */
    uint64_t group;                 /* 0: none */
    const char *const *unquantized; /* module names of TensorRT-LLM */
    size_t n_unquantized;
} tsr_trtllm_quantization;

/* Appends config.json. `dtype` is the dtype of activations and scales. TSR_E_UNSUPPORTED: the source's config.json
 * lacks a dimension. */
tsr_status tsr_trtllm_config(tsr_text *out, const tsr_checkpoint *source, const char *model_type, tsr_dtype dtype,
                             const tsr_trtllm_quantization *quantization, tsr_err *err);
