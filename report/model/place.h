/* Parses a tensor's name into its position in the model: stack of layers, layer, kind of module, expert.
 *
 * "model.layers.3.mlp.experts.17.down_proj.weight" is layer 3 of "model.layers", expert 17, and an
 * "experts.down_proj". */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define TSR_NO_NUMBER UINT32_MAX
enum { TSR_MAX_MODULE = 96 };

typedef struct tsr_place {
    uint32_t stack_size;    /* length of the stack's name at the beginning: "model.layers"; 0: not in a layer */
    uint32_t layer, expert; /* TSR_NO_NUMBER: none */
} tsr_place;

tsr_place tsr_place_of(const char *name);

/* Writes the module of a name to `module`, truncated to its size: "experts.down_proj", "shared_experts.down_proj",
 * "q_proj", "lm_head". Returns `module`. */
const char *tsr_module_of(const char *name, char module[TSR_MAX_MODULE]);
