/* Writes the quantization_config of MXFP4, MXFP8, NVFP4 and FP8 per tensor in three dialects.
 *
 * Keys are exactly those of each producer, because readers reject unknown keys and select code by the known ones. */
#pragma once

#include "common/text.h"
#include "formats/weights/weights.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_mx_config {
    const char *name;               /* "nvfp4-pack-quantized"; in ModelOpt's dialect the algorithm: "NVFP4" */
    uint32_t bits, group;           /* group 0: one scale per tensor */
    bool global;                    /* scales are e4m3, multiplied by a global scale */
    bool inputs;                    /* activations are quantized too, in the same format */
    bool static_inputs;             /* group 0: with a stored scale; otherwise with one per token */
    const char *const *unquantized; /* sorted modules that loaders would otherwise take for quantized linear layers */
    size_t n_unquantized;
} tsr_mx_config;

/* Appends one group of a compressed-tensors configuration for these targets. */
void tsr_mx_config_write_group(tsr_text *out, const tsr_mx_config *config, const char *const *targets, size_t n);

/* Appends the object. */
void tsr_mx_config_write(tsr_text *out, tsr_dialect dialect, const tsr_mx_config *config);

/* Appends the text of hf_quant_config.json. */
void tsr_mx_config_write_modelopt_file(tsr_text *out, const tsr_mx_config *config);

/* ---- ModelOpt's MIXED_PRECISION ---- */

/* The modules of one scheme by full name, sorted. Members of fused layers are also listed under the fused name, which
 * SGLang looks up. */
typedef struct tsr_modelopt_group {
    tsr_mx_config config;
    const char *const *modules, *const *joined;
    size_t n, n_joined;
} tsr_modelopt_group;

/* A whole checkpoint. A module that no group names is unquantized; `plain` lists the modules that must be excluded
 * explicitly. */
typedef struct tsr_modelopt_mix {
    const tsr_modelopt_group *groups;
    const char *const *plain;
    size_t n, n_plain;
} tsr_modelopt_mix;

/* Appends the quantization_config object of config.json, or the text of hf_quant_config.json, with the scheme of each
 * module. */
void tsr_mx_config_write_mixed(tsr_text *t, const tsr_modelopt_mix *mix);
void tsr_mx_config_write_mixed_file(tsr_text *t, const tsr_modelopt_mix *mix);
