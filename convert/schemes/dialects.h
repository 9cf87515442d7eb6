/* The table of dialects, one row each: the name for --dialect, the arithmetic of its tool, and the names of tensors. */
#pragma once

#include "formats/weights/weights.h"

/* The words of --dialect, in the order of tsr_dialect. DeepSeek-V4's own names follow from the model, not from a
 * word. */
#define TSR_DIALECT_WORDS "deepseek|compressed-tensors|modelopt|gpt-oss|sglang"

/* Names and shapes of the tensors of module X in MXFP4, MXFP8, NVFP4, and FP8 with one scale per tensor. */
typedef struct tsr_mx_names {
    const char *codes, *scales; /* ".weight_packed", ".weight_scale" */
    const char *global, *input; /* F32: NVFP4's global scale of the weight; the static scale of the layer's input */
    unsigned global_rank;       /* rank of tensors of one scale: 1 for [1], 0 for [] */
    tsr_dtype packed;           /* dtype of E2M1 codes, two per element: U8 or I8 */
    tsr_dtype power;            /* dtype of E8M0 scales: U8 or F8_E8M0 */
    bool blocks;                /* codes are [.., R, groups, bytes of a group] instead of [.., R, bytes of a row] */
} tsr_mx_names;

typedef struct tsr_dialect_row {
    const char *name;
    bool modelopt;              /* codes and scales are computed as ModelOpt does, else as compressed-tensors does */
    tsr_mx_names packed, bytes; /* names for two codes per byte, and for one byte per code */
} tsr_dialect_row;

/* Returns the row of a dialect. Static storage. */
const tsr_dialect_row *tsr_dialect_row_of(tsr_dialect dialect);

/* Returns the name of a dialect: "compressed-tensors". Static storage. */
const char *tsr_dialect_name(tsr_dialect dialect);
