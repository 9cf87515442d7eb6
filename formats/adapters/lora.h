/* Pairs the tensors of a LoRA adapter in PEFT's format with the weights of its base model.
 *
 * "base_model.model.X.lora_A.weight" [r, in] and ".lora_B.weight" [out, r] belong to the weight "X.weight" [out, in];
 * its update is scale * B * A. With fan_in_fan_out the weight is [in, out], and the update is transposed.
 *
 * A parameter of target_parameters is "X.PARAMETER", such as a stack of experts [E, out, in]. Then A is [E * r, in]
 * with row e * r + k for rank k of expert e, and B is [out, r * E] with column k * E + e. A stack that is stored as [E,
 * in, out] has the same A and B. A second parameter of X has its tensors at "X.base_layer". Source: ParamWrapper in
 * peft/tuners/lora/layer.py of PEFT 0.21. */
#pragma once

#include "formats/adapters/lora_config.h"
#include "formats/weights/weights.h"

#define TSR_LORA_WEIGHTS_NAME "adapter_model.safetensors"

/* The update of one weight of the base. */
typedef struct tsr_lora_update {
    const tsr_tensor *a, *b; /* tensors of the adapter: BF16, F16 or F32 */
    const tsr_weight *weight;
    const char *key;        /* the module or parameter in the configuration */
    uint64_t rank, experts; /* r, and E (1 for a matrix) */
    float scale;            /* with the factor of all updates */
    bool turned;            /* the weight is stored as [in, out] */
} tsr_lora_update;

typedef struct tsr_lora {
    const tsr_checkpoint *adapter, *base;
    double factor; /* multiplies the scales of all updates */
    tsr_lora_config config;
    tsr_lora_update *updates; /* ordered by the address of `weight` */
    size_t count, capacity;
    const char *unmatched; /* names of the configuration that match nothing, which PEFT ignores; NULL: none */
    tsr_arena arena;
} tsr_lora;

/* Reads adapter_config.json and pairs all tensors of the adapter, whose scales are multiplied by `factor` in FP64
 * before they are rounded to FP32. `adapter` was opened with TSR_LORA_WEIGHTS_NAME as its only file. Everything passed
 * must outlive the result. TSR_E_FORMAT: a tensor without its partner, with an unknown name, or that the configuration
 * does not target. TSR_E_MISMATCH: the base has no such weight. TSR_E_SHAPE: shapes do not fit. TSR_E_UNSUPPORTED: see
 * formats/adapters/lora_config.h. On failure there is nothing to free. */
tsr_status tsr_lora_read(tsr_lora *lora, const tsr_checkpoint *adapter, double factor, const tsr_checkpoint *base,
                         const tsr_weights *weights, tsr_err *err);

/* Returns the update of a weight; NULL: it has none. Logarithmic time. */
const tsr_lora_update *tsr_lora_update_of(const tsr_lora *lora, const tsr_weight *weight);

void tsr_lora_free(tsr_lora *lora);
