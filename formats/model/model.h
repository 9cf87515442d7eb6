/* The model behind a checkpoint: its dimensions as config.json states them, and what part of it a tensor is. */
#ifndef TSR_FORMATS_MODEL_MODEL_H
#define TSR_FORMATS_MODEL_MODEL_H

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

/* By the name alone; a layer's place (main or MTP) does not matter. */
tsr_part tsr_part_of(const char *name);

/* "attention", "routed experts", ... Static storage. */
const char *tsr_part_name(tsr_part part);

/* The number behind "layers." in a name; false when there is none. */
bool tsr_layer_of(const char *name, uint64_t *layer);

/* Whether a tensor belongs to multi-token prediction: a layer behind the last, or a module called mtp. */
bool tsr_model_is_mtp(const tsr_model *model, const char *name);

/* Values that one token leaves in the KV cache of one layer, if its attention kept `kv_heads` heads of keys and values
 * of tsr_model_head_dim each: 2 * kv_heads * head_dim. */
uint64_t tsr_model_kv_values(const tsr_model *model, uint64_t kv_heads);

/* The next smaller number of heads of keys and values that all heads could share evenly (GQA; 1 is MQA): the largest
 * divisor of `heads` below `groups`, which is 1 or more. 0: there is none. */
uint64_t tsr_fewer_groups(const tsr_model *model, uint64_t groups);

/* The same for MLA: the latent and the rope part of the key, kv_lora_rank + rope. */
uint64_t tsr_model_latent_values(const tsr_model *model);

/* Of values; for MLA v_head_dim, which is also the part of a key that rope leaves alone. */
uint64_t tsr_model_head_dim(const tsr_model *model);

#endif
