/* A table of name patterns: how loaders divide tensors among tensor-parallel ranks. Sources: vLLM's and SGLang's model
 * files (ColumnParallelLinear, MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear,
 * VocabParallelEmbedding, ReplicatedLinear; FusedMoE under tensor parallelism). */
#pragma once

#include "formats/checkpoint/safetensors.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum tsr_tp_split {
    TSR_TP_UNKNOWN,   /* no pattern matches */
    TSR_TP_REPLICATE, /* every rank has the whole tensor */
    TSR_TP_ROWS,      /* output features (the last but one dimension; the only one of a bias) */
    TSR_TP_GATE_UP,   /* output features of gate and up, stacked in one tensor: each half is cut */
    TSR_TP_COLUMNS,   /* input features (the last dimension) */
} tsr_tp_split;

/* The number that must be a multiple of the number of ranks, because ranks get whole items of that kind. */
typedef enum tsr_tp_unit {
    TSR_TP_FEATURES, /* the dimension itself */
    TSR_TP_HEADS,    /* num_attention_heads */
    TSR_TP_KV_HEADS, /* num_key_value_heads */
} tsr_tp_unit;

typedef struct tsr_tp_rule {
    const char *pattern;
    tsr_tp_split how;
    tsr_tp_unit unit;
} tsr_tp_rule;

/* Returns the rule for a tensor of this name; how = UNKNOWN if there is none. Multi-head latent attention is recognized
 * by its names. Scales follow their weights and have no rules of their own. Static storage. */
const tsr_tp_rule *tsr_tp_find_rule(const char *name);
