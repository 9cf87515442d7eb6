/* The model of a checkpoint: its dimensions from config.json, and the part that a tensor belongs to. */
#pragma once

#include "formats/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stdint.h>

/* 0 if config.json has no value. A multimodal model has those of its text_config. */
typedef struct tsr_model {
    uint64_t layers;     /* num_hidden_layers; layers with this number or above are MTP layers */
    uint64_t mtp_layers; /* num_nextn_predict_layers */
    uint64_t hidden, heads, kv_heads, head_dim;
    uint64_t experts; /* routed experts per layer */
    /* MLA */
    uint64_t q_lora_rank, kv_lora_rank, nope, rope, v_head_dim;
    /* Linear attention (Qwen3-Next, Qwen3.5): key heads, and the total widths of keys and of values. */
    uint64_t linear_heads, linear_keys, linear_values;
    bool untied; /* tie_word_embeddings is false, so there is an output head */
} tsr_model;

tsr_model tsr_model_read(const tsr_checkpoint *checkpoint);

typedef enum tsr_part {
    TSR_PART_ATTENTION,
    TSR_PART_DENSE_MLP,
    TSR_PART_ROUTED_EXPERTS,
    TSR_PART_SHARED_EXPERTS,
    TSR_PART_ROUTER,
    TSR_PART_NORM,
    TSR_PART_EMBEDDING,
    TSR_PART_HEAD,
    TSR_PART_OTHER,
    TSR_PART_COUNT
} tsr_part;

/* Returns the part from the name alone, which does not distinguish main and MTP layers. */
tsr_part tsr_part_of(const char *name);

/* Returns the name: "attention", "routed experts", ... Static storage. */
const char *tsr_part_name(tsr_part part);

/* Reads the number after "layers." in a name. Returns false if there is none. */
bool tsr_layer_of(const char *name, uint64_t *layer);

/* Returns true if a tensor belongs to multi-token prediction: a layer after the last, or a module called mtp. */
bool tsr_model_is_mtp(const tsr_model *model, const char *name);

/* Returns the values that one token needs in the KV cache of one layer with `kv_heads` key-value heads of
 * tsr_model_head_dim: 2 * kv_heads * head_dim. */
uint64_t tsr_model_kv_values(const tsr_model *model, uint64_t kv_heads);

/* Returns the next smaller number of key-value heads that all heads could share evenly (GQA; 1 is MQA): the largest
 * divisor of `heads` below `groups`, which is at least 1. 0: there is none. */
uint64_t tsr_fewer_groups(const tsr_model *model, uint64_t groups);

/* Returns the values per token of an MLA cache: kv_lora_rank + rope. */
uint64_t tsr_model_latent_values(const tsr_model *model);

/* Returns the head dimension of values. For MLA it is v_head_dim. */
uint64_t tsr_model_head_dim(const tsr_model *model);
