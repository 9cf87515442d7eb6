/* The dimensions of multi-head latent attention, as config.json states them. DeepSeek-V2, section 2.1. */
#ifndef TSR_FORMATS_NAMES_MLA_SHAPE_H
#define TSR_FORMATS_NAMES_MLA_SHAPE_H

#include "formats/checkpoint/checkpoint.h"

#include <stdint.h>

typedef struct tsr_mla_shape {
    uint64_t heads; /* num_attention_heads */
    uint64_t nope;  /* qk_nope_head_dim: of a head's query and key, the part that RoPE leaves alone */
    uint64_t v;     /* v_head_dim */
    uint64_t rope;  /* qk_rope_head_dim */
    uint64_t rank;  /* kv_lora_rank: of the latent that keys and values are made of */
} tsr_mla_shape;

/* All of them, each from 1 to 2^20. TSR_E_USAGE: the checkpoint has no config.json. TSR_E_UNSUPPORTED: one is not there;
 * the message names the first. */
tsr_status tsr_mla_shape_read(tsr_mla_shape *shape, const tsr_checkpoint *checkpoint, tsr_err *err) TSR_WARN_UNUSED;

/* One more dimension under the same rule, for what `key` says in config.json. */
tsr_status tsr_mla_dimension_read(const tsr_checkpoint *checkpoint, const char *key, uint64_t *value,
                                  tsr_err *err) TSR_WARN_UNUSED;

#endif
