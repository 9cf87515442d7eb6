/* Names of the scales of an FP8 KV cache.
 *
 *   compressed-tensors  self_attn.k_scale, self_attn.v_scale
 *   ModelOpt            self_attn.k_proj.k_scale, self_attn.v_proj.v_scale; both for a joined qkv_proj
 *   older tools         self_attn.kv_scale, one for keys and values
 *
 * (vllm model_loader/weight_utils.py, maybe_remap_kv_scale_name) */
#pragma once

#include "formats/weights/weights.h"

/* The parts of a name of a KV-cache scale. */
typedef struct tsr_kv_name {
    bool keys, values; /* scale of keys, of values, or of both */
    int attention;     /* length of the name of the layer's attention, "model.layers.0.self_attn" */
} tsr_kv_name;

/* Parses a name. Returns false if it is not that of such a scale. */
bool tsr_kv_name_read(const char *name, tsr_kv_name *read);

/* Returns the tensor of this name, or of an alternative name of the same scale; NULL: there is none. */
const tsr_weight *tsr_weights_find_same(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const char *name);
