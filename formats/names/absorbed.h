/* An absorbed kv_b_proj: the parts that engines of multi-head latent attention hold in its place.
 *
 * kv_b_proj is [heads * (nope + v), L], L = kv_lora_rank: of each head `nope` rows that make keys, then `v` rows that
 * make values. Each consumer has names of its own for the two parts and for their scales, and an order in memory:
 * [heads, rows, L], or [heads, L, rows]. convert --to mla-absorbed writes them; `tessera_mla` in config.json says so.
 */
#ifndef TSR_FORMATS_NAMES_ABSORBED_H
#define TSR_FORMATS_NAMES_ABSORBED_H

#include "formats/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct tsr_absorbed_part {
    const char *name;      /* what follows "...self_attn." */
    const char *scale;     /* one FP32 value a head, or [heads, row blocks, column blocks] as stored; NULL: never FP8 */
    const char *one_scale; /* one FP32 value for both parts */
    bool values;           /* the rows that make values; else keys */
    bool latent_first;     /* [heads, L, rows]; else [heads, rows, L] */
} tsr_absorbed_part;

/* The consumers' words are those of convert --consumer. */
typedef struct tsr_absorbed_consumer {
    const char *word;
    tsr_absorbed_part keys, values;
} tsr_absorbed_consumer;

enum { TSR_ABSORBED_CONSUMERS = 4 };
extern const tsr_absorbed_consumer tsr_absorbed_consumers[TSR_ABSORBED_CONSUMERS];

/* Returns the part that a tensor of this name is; NULL: none. Its siblings share the first strlen(name) - strlen(part->name)
 * characters of the name. */
const tsr_absorbed_part *tsr_absorbed_find(const char *name);

/* Builds the name of the sibling of a tensor whose own last words are `own`:
 * "model.layers.0.self_attn.kv_b_proj.weight" for "model.layers.0.self_attn.w_kc". Returns false if it does not fit. */
bool tsr_absorbed_sibling(const char *name, const char *own, const char *sibling, char *text, size_t size);

/* Returns true if config.json says that the parts are folded into q_b_proj (or q_proj) and o_proj. */
bool tsr_absorbed_is_folded(const tsr_checkpoint *checkpoint);

#endif
