/* Names of DeepSeek's inference code: how its convert.py renames Hugging Face's tensors and cuts each of them.
 *
 * The prefix "model." is dropped, self_attn becomes attn, mlp becomes ffn, the last component but one is looked up in a
 * table, a scale is called "scale" and the router's bias "bias". */
#pragma once

#include "common/arena.h"
#include "formats/names/tensor_parallel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_deepseek_key {
    const char *hf, *deepseek; /* the last component but one, before ".weight" or similar */
    tsr_tp_split how;
    bool heads; /* cut between attention heads: the ranks must divide num_attention_heads */
} tsr_deepseek_key;

/* Finds the component `from_end` places before the last one: sets its start and returns its length, or 0 if there is
 * none. */
size_t tsr_name_component(const char *name, int from_end, const char **start);

/* Finds the key of a Hugging Face name or (_back) of a DeepSeek name. Returns false if the code has no such tensor or
 * the name is too long. With `mtp` also finds those of a multi-token prediction layer, which are not cut and keep their
 * names. */
bool tsr_deepseek_key_of(const char *name, bool mtp, tsr_deepseek_key *key);
bool tsr_deepseek_key_back(const char *name, bool mtp, tsr_deepseek_key *key);

/* Translates a Hugging Face name to DeepSeek's name, where `last` is the last component, and the reverse. Includes
 * scales and the router's bias. Returns NULL when memory is exhausted. */
const char *tsr_deepseek_name(tsr_arena *arena, const char *name, const tsr_deepseek_key *key, const char *last);
const char *tsr_deepseek_name_back(tsr_arena *arena, const char *name, const tsr_deepseek_key *key);

/* Finds the number of a routed expert in "...experts.N.key.weight". Returns false for other names. */
bool tsr_deepseek_expert(const char *name, uint64_t *expert);

/* Returns N of "model.layers.N." or "layers.N.", or -1. */
long long tsr_deepseek_layer(const char *name);
