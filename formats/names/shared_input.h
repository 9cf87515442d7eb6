/* Names the input of a linear layer, which other layers may share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct tsr_shared_input {
    char name[512];
    bool expert; /* the layer is an expert's, or a stack of experts */
    bool common; /* all experts of the layer take their rows from one input */
} tsr_shared_input;

/* Names the input of a module of `length` characters:
 *   model.layers.0.self_attn.k_proj          model.layers.0.self_attn.qkv_proj: members of a fused layer share it
 *   model.layers.0.mlp.experts.7.up_proj     model.layers.0.mlp.experts.gate_up_proj, common to all experts
 *   model.layers.0.mlp.experts.gate_up_proj  the same, a stack
 *   others                                   the module
 * Returns false if the name is too long. */
bool tsr_shared_input_of(const char *module, size_t length, tsr_shared_input *input);
