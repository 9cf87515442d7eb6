/* The plans that lay weights out for the mixed-precision GEMMs of FasterTransformer and TensorRT-LLM, and back.
 *
 * Weights are quantized symmetrically from BF16, F16 or F32, or come from a checkpoint of packed integers
 * (pack-quantized, symmetric), whose codes and scales stay unchanged. tessera-layout.json describes the files:
 *
 *   {"schema": "tessera-layout/1", "target", "producer", "arch", "layout", "bits", "group_size" (0: a channel),
 *    "divisor", "rounding" (null when the codes were there already), "scale_dtype",
 *    "weights": [{"name", "file", "tensor" and "scale" (of a safetensors file; a raw one has the K * N * bits / 8 bytes
 *                 of codes and then the scales), "k", "n", "first", "columns"}, ...],
 *    "tensors": [{"name", "tensor", "first", "bytes", "shape"}, ...]}   what was renamed, or joined: bytes from `first`
 *    on
 *
 * Scales are [n], or [k / group_size, n]. */
#pragma once

#include "convert/plan/plan.h"
#include "kernels/cpu/ft_layout.h"
#include "quantize/int_weight.h"
#include "quantize/policy/policy.h"

typedef enum tsr_layout_kind {
    TSR_LAYOUT_FASTERTRANSFORMER, /* NAME.0.bin for each weight; other tensors unchanged, in safetensors */
    TSR_LAYOUT_TRTLLM,            /* rank0.safetensors and config.json with TensorRT-LLM's names */
} tsr_layout_kind;

typedef struct tsr_layout_options {
    tsr_layout_kind kind;
    tsr_ft_producer producer;
    int arch;              /* 70, 75, ... */
    tsr_int_scheme scheme; /* for floating-point sources; packed sources determine bits, group and scales */
    tsr_dtype scale_dtype; /* dtype of scales as stored, BF16 or F16 */
    const char *asked;     /* a given option that applies only to quantizing; NULL: none */
    tsr_policy_options policy;
    uint64_t max_shard_bytes;
} tsr_layout_options;

/* TSR_E_UNSUPPORTED: the producer has no layout for the architecture; the integers are asymmetric or of several kinds;
 * TensorRT-LLM has no names for the model or no algorithm for the groups. TSR_E_USAGE: `asked` with a packed source.
 * TSR_E_SHAPE: as for tsr_layout_check. */
tsr_status tsr_layout_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_layout_options *options,
                           tsr_err *err);

/* Plans the inverse: a checkpoint of packed integers in compressed-tensors' form, with the model's original names.
 * TSR_E_FORMAT: tessera-layout.json is missing, of another kind, or does not match the files. */
tsr_status tsr_unlayout_plan(tsr_plan *plan, const tsr_checkpoint *const *source, tsr_layout_kind kind,
                             uint64_t max_shard_bytes, tsr_err *err);
