/* Names of llama.cpp for the weights of Hugging Face checkpoints. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TSR_IMATRIX_NAME = 96 };

/* The name of a weight in an imatrix file, without ".weight". */
typedef struct tsr_imatrix_name {
    char text[TSR_IMATRIX_NAME]; /* "blk.3.ffn_up_exps" */
    bool expert;                 /* `matrix` is the number of the expert; otherwise the weight is all matrices */
    uint64_t matrix;
} tsr_imatrix_name;

/* Writes the i-th name that llama.cpp may use for the module of `weight`, "model.layers.3.mlp.up_proj.weight". Returns
 * false if there is no such name. Source: gguf-py, tensor_mapping.py. */
bool tsr_imatrix_name_of(const char *weight, size_t i, tsr_imatrix_name *name);
