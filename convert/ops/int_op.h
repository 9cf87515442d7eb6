/* Declares the steps that quantize weights to integers, in the layouts of compressed-tensors. */
#pragma once

#include "convert/plan/plan.h"
#include "quantize/int_input.h"
#include "quantize/int_weight.h"

/* The static quantization of a layer's activations. */
typedef struct tsr_static_input {
    tsr_int_input value;
    bool asymmetric;
} tsr_static_input;

/* X.weight [R, C] -> X.weight I8 [R, C] and X.weight_scale [R, 1] in the scheme's dtype. `input` (may be NULL) adds
 * X.input_scale F32 [1] and, if it is asymmetric, X.input_zero_point I8 [1]. */
tsr_status tsr_plan_int8(tsr_plan *plan, const tsr_tensor *weight, const tsr_int_scheme *scheme,
                         const tsr_static_input *input, tsr_err *err);

/* X.weight [R, C] -> X.weight_packed I32 [R, C * bits / 32], X.weight_scale [R, groups] and X.weight_shape I64 [2]. A
 * word holds code + 2^(bits-1) of consecutive columns, the first in the lowest bits; a row must be whole words. An
 * asymmetric scheme adds X.weight_zero_point I32 [ceil(R * bits / 32), groups], packed along R. Source:
 * compressors/pack_quantized/helpers.py. */
tsr_status tsr_plan_packed(tsr_plan *plan, const tsr_tensor *weight, const tsr_int_scheme *scheme, tsr_err *err);

/* X.weight [R, C] -> X.weight I8 [R, C / 2], X.weight_scale_inv [R, groups] and X.input_scale BF16 [1], the value
 * `input`. A byte holds two int4 codes in two's complement, the even column in the low half; a row must be whole
 * groups. Source: SGLang's w4afp8.py. */
tsr_status tsr_plan_nibbles(tsr_plan *plan, const tsr_tensor *weight, const tsr_int_scheme *scheme, float input,
                            tsr_err *err);

/* Returns the scale of the input that a step of tsr_plan_nibbles stores. */
float tsr_int_step_input(const tsr_step *step);

/* X.weight -> X.azp_adj I32 [R]: the row sums of the codes that tsr_plan_int8 makes. An asymmetric `input` adds
 * X.azp_with_adj: the sums times its zero point. `codes` is the number of the tsr_plan_int8 step that coproduces
 * them. */
tsr_status tsr_plan_azp(tsr_plan *plan, const tsr_tensor *weight, const tsr_int_scheme *scheme,
                        const tsr_static_input *input, size_t codes, tsr_err *err);
