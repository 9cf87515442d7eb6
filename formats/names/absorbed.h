/* An absorbed kv_b_proj: the two parts that engines of multi-head latent attention keep instead of it.
 *
 * kv_b_proj is [heads * (nope + v), L], L = kv_lora_rank: per head `nope` rows that make keys, followed by `v` rows
 * that make values. Each consumer has its own names for the two parts and their scales, and its own order in memory:
 * [heads, rows, L] or [heads, L, rows]. convert --to mla-absorbed writes them and records it as `tessera_mla` in
 * config.json. */
#pragma once

#include "formats/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct tsr_absorbed_part {
    const char *name;      /* what follows "...self_attn." */
    const char *scale;     /* one FP32 value per head, or [heads, row blocks, column blocks] as stored; NULL: never
                            * FP8 */
    const char *one_scale; /* one FP32 value for both parts */
    bool values;           /* the rows that make values; otherwise keys */
    bool latent_first;     /* [heads, L, rows] if true, else [heads, rows, L] */
} tsr_absorbed_part;

/* The names are those of convert --consumer. */
typedef struct tsr_absorbed_consumer {
    const char *word;
    tsr_absorbed_part keys, values;
} tsr_absorbed_consumer;

enum { TSR_ABSORBED_CONSUMERS = 4 };
extern const tsr_absorbed_consumer tsr_absorbed_consumers[TSR_ABSORBED_CONSUMERS];

/* Returns which part a tensor of this name is, or NULL. Names of its siblings have the same first strlen(name) -
 * strlen(part->name) characters. */
const tsr_absorbed_part *tsr_absorbed_find(const char *name);

/* Builds the name of the sibling of a tensor whose own ending is `own`: "model.layers.0.self_attn.kv_b_proj.weight" for
 * "model.layers.0.self_attn.w_kc". Returns false if it does not fit. */
bool tsr_absorbed_sibling(const char *name, const char *own, const char *sibling, char *text, size_t size);

/* Returns true if config.json says that the parts are folded into q_b_proj (or q_proj) and o_proj. */
bool tsr_absorbed_is_folded(const tsr_checkpoint *checkpoint);
