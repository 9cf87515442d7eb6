/* The quantization_config of MXFP4, MXFP8 and NVFP4 in three dialects: key for key what the producers write, since
 * readers refuse keys that they do not know, and decide by those that they do. */
#ifndef TSR_CONVERT_CONFIGS_MX_CONFIG_H
#define TSR_CONVERT_CONFIGS_MX_CONFIG_H

#include "common/text.h"
#include "formats/weights/weights.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_mx_config {
    const char *name; /* "nvfp4-pack-quantized", or in ModelOpt's dialect the algorithm: "NVFP4" */
    uint32_t bits, group;
    bool global;                    /* scales are e4m3 under a global scale */
    bool inputs;                    /* activations are quantized as well, in the same format */
    const char *const *unquantized; /* modules that loaders would take for linear layers, sorted */
    size_t n_unquantized;
} tsr_mx_config;

/* Appends one group of compressed-tensors' configuration, for these targets. */
void tsr_mx_config_write_group(tsr_text *out, const tsr_mx_config *config, const char *const *targets, size_t n);

/* Appends the object. */
void tsr_mx_config_write(tsr_text *out, tsr_dialect dialect, const tsr_mx_config *config);

/* Appends the text of hf_quant_config.json. */
void tsr_mx_config_write_modelopt_file(tsr_text *out, const tsr_mx_config *config);

/* ---- ModelOpt's MIXED_PRECISION ---- */

/* The modules of one scheme, by their full names; sorted. Those that loaders join have their joined name as well, by which
 * SGLang looks for them. */
typedef struct tsr_modelopt_group {
    tsr_mx_config config;
    const char *const *modules, *const *joined;
    size_t n, n_joined;
} tsr_modelopt_group;

/* A whole checkpoint: what no group names is unquantized. `plain` are names that have to be excluded all the same. */
typedef struct tsr_modelopt_mix {
    const tsr_modelopt_group *groups;
    const char *const *plain;
    size_t n, n_plain;
} tsr_modelopt_mix;

/* Appends config.json's object, or hf_quant_config.json, with the scheme of each module. */
void tsr_mx_config_write_mixed(tsr_text *t, const tsr_modelopt_mix *mix);
void tsr_mx_config_write_mixed_file(tsr_text *t, const tsr_modelopt_mix *mix);

#endif
