/* Writes quantization_config in the form of compressed-tensors, with one group for all linear layers. */
#pragma once

#include "common/block.h"
#include "common/text.h"
#include "formats/checkpoint/safetensors.h"

typedef enum tsr_ct_inputs {
    TSR_CT_INPUTS_PLAIN,  /* activations stay in floating point: weight-only */
    TSR_CT_INPUTS_TOKEN,  /* one scale per token, computed at run time; with blocks, one per token and block.cols
                           * channels */
    TSR_CT_INPUTS_TENSOR, /* one stored scale per tensor */
} tsr_ct_inputs;

typedef struct tsr_ct_config {
    const char *format; /* "int-quantized", "pack-quantized", "float-quantized" */
    const char *type;   /* "int" or "float", of weights and activations */
    bool float_inputs;  /* activations are "float" beside weights of another type */
    uint32_t bits;      /* bits of the weights; activations have 8 */
    uint64_t group;     /* columns that share a scale; 0: the whole row */
    bool whole;         /* one scale per tensor */
    tsr_block block;    /* 0 x 0: no blocks */
    bool asymmetric;
    bool ordered; /* columns are assigned to groups by weight_g_idx ("actorder") */
    tsr_ct_inputs inputs;
    bool asymmetric_inputs;
} tsr_ct_config;

/* Appends the object. `unquantized` are the tensors that loaders would take for linear layers but that are not
 * quantized; the array is sorted. Writes only keys that every released reader knows, because readers refuse others
 * (quant_args.py). */
void tsr_ct_config_write(tsr_text *out, const tsr_ct_config *config, const tsr_tensor **unquantized, size_t n);

/* Appends one group for these targets, with its format unless that is NULL. */
void tsr_ct_config_write_group(tsr_text *out, const tsr_ct_config *config, const char *const *targets, size_t n);

/* Appends the members of a configuration that precede config_groups. */
void tsr_ct_config_head(tsr_text *out, const char *format);
void tsr_ct_config_tail(tsr_text *out);

/* Appends the modules that stay unquantized as a JSON array, without ".weight". Sorts `tensors` in place. */
void tsr_json_modules(tsr_text *out, const tsr_tensor **tensors, size_t n);

/* Appends the `ignore` array: the same modules, and the names of the fused layers that they form, because SGLang looks
 * these up. */
void tsr_ct_ignore(tsr_text *out, const tsr_tensor **tensors, size_t n);

enum { TSR_MODULE_NAME = 1024 };

/* Sorts tensors by name, so that tsr_joined_module finds them. */
void tsr_sort_by_name(const tsr_tensor **tensors, size_t n);

/* Returns true if tensors[i] is the first member of a fused layer and all other members are among the n sorted tensors.
 * Sets `name` to the name of the fused layer. Experts are fused under a name of their own. */
bool tsr_joined_module(const tsr_tensor *const *tensors, size_t n, size_t i, char name[TSR_MODULE_NAME]);
