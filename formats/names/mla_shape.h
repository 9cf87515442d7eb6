/* The dimensions of multi-head latent attention in config.json. DeepSeek-V2, section 2.1. */
#pragma once

#include "formats/checkpoint/checkpoint.h"

#include <stdint.h>

typedef struct tsr_mla_shape {
    uint64_t heads; /* num_attention_heads */
    uint64_t nope;  /* qk_nope_head_dim: the part of a head's query and key without RoPE */
    uint64_t v;     /* v_head_dim */
    uint64_t rope;  /* qk_rope_head_dim */
    uint64_t rank;  /* kv_lora_rank: size of the latent from which keys and values are computed */
} tsr_mla_shape;

/* Reads all of them, each from 1 to 2^20. TSR_E_USAGE: the checkpoint has no config.json. TSR_E_UNSUPPORTED: one is
 * missing; the message names the first. */
tsr_status tsr_mla_shape_read(tsr_mla_shape *shape, const tsr_checkpoint *checkpoint, tsr_err *err);

/* Reads one more dimension, `key` of config.json, under the same rule. */
tsr_status tsr_mla_dimension_read(const tsr_checkpoint *checkpoint, const char *key, uint64_t *value, tsr_err *err);
