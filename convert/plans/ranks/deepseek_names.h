/* The names of DeepSeek's inference code: what its convert.py makes of Hugging Face's, and how it cuts each.
 *
 * "model." goes, self_attn becomes attn, mlp becomes ffn, the last word but one is looked up, a scale is called scale
 * and the router's bias bias. */
#ifndef TSR_CONVERT_PLANS_RANKS_DEEPSEEK_NAMES_H
#define TSR_CONVERT_PLANS_RANKS_DEEPSEEK_NAMES_H

#include "common/arena.h"
#include "formats/names/tensor_parallel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_deepseek_key {
    const char *hf, *deepseek; /* the last component but one, ".weight" and the like following it */
    tsr_tp_split how;
    bool heads; /* the cut falls between attention heads: the ranks must divide num_attention_heads */
} tsr_deepseek_key;

/* Returns the length of the component `from_end` places before the last one, and its start; 0 if there is none. */
size_t tsr_name_component(const char *name, int from_end, const char **start);

/* The key of a Hugging Face name, or (_back) of one of DeepSeek's; false when the code has no such tensor, nor one of so
 * long a name. With `mtp` also those of a multi-token prediction layer, which are kept whole under their own names. */
bool tsr_deepseek_key_of(const char *name, bool mtp, tsr_deepseek_key *key);
bool tsr_deepseek_key_back(const char *name, bool mtp, tsr_deepseek_key *key);

/* A Hugging Face name in DeepSeek's words, `last` being its last one; and back, the scale's word and the router's bias
 * included. NULL when memory is exhausted. */
const char *tsr_deepseek_name(tsr_arena *arena, const char *name, const tsr_deepseek_key *key, const char *last);
const char *tsr_deepseek_name_back(tsr_arena *arena, const char *name, const tsr_deepseek_key *key);

/* The routed expert's number in "...experts.N.key.weight"; false for all else. */
bool tsr_deepseek_expert(const char *name, uint64_t *expert);

/* N of "model.layers.N." or "layers.N.", or -1. */
long long tsr_deepseek_layer(const char *name);

#endif
