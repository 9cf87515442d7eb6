/* The model of a checkpoint: its dimensions as config.json states them, and the part of it that a tensor is. */
#ifndef TSR_FORMATS_NAMES_MODEL_H
#define TSR_FORMATS_NAMES_MODEL_H

#include "formats/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stdint.h>

/* 0 where config.json says nothing. A multimodal model's are those of its text_config. */
typedef struct tsr_model {
    uint64_t layers;     /* num_hidden_layers: those from this number on are MTP layers */
    uint64_t mtp_layers; /* num_nextn_predict_layers */
    uint64_t hidden, heads, kv_heads, head_dim;
    uint64_t experts; /* routed ones in a layer */
    /* MLA */
    uint64_t q_lora_rank, kv_lora_rank, nope, rope, v_head_dim;
    /* Linear attention (Qwen3-Next, Qwen3.5): heads of keys, and the widths of all keys and of all values */
    uint64_t linear_heads, linear_keys, linear_values;
    bool untied; /* tie_word_embeddings is false: there is an output head */
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

/* Returns the part by the name alone; main and MTP layers are not distinguished. */
tsr_part tsr_part_of(const char *name);

/* "attention", "routed experts", ... Static storage. */
const char *tsr_part_name(tsr_part part);

/* Reads the number after "layers." in a name; false if there is none. */
bool tsr_layer_of(const char *name, uint64_t *layer);

/* Returns true if a tensor belongs to multi-token prediction: a layer after the last, or a module called mtp. */
bool tsr_model_is_mtp(const tsr_model *model, const char *name);

/* Values that one token leaves in the KV cache of one layer, if its attention kept `kv_heads` heads of keys and values
 * of tsr_model_head_dim each: 2 * kv_heads * head_dim. */
uint64_t tsr_model_kv_values(const tsr_model *model, uint64_t kv_heads);

/* The next smaller number of heads of keys and values that all heads could share evenly (GQA; 1 is MQA): the largest
 * divisor of `heads` below `groups`, which is 1 or more. 0: there is none. */
uint64_t tsr_fewer_groups(const tsr_model *model, uint64_t groups);

/* Returns the values per token of an MLA cache: kv_lora_rank + rope. */
uint64_t tsr_model_latent_values(const tsr_model *model);

/* Returns the head dimension of values. For MLA it is v_head_dim. */
uint64_t tsr_model_head_dim(const tsr_model *model);

#endif
