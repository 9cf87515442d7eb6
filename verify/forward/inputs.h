/* Quantizes the inputs of a linear layer as consumers do, by the checkpoint or by the caller's choice.
 *
 * An input x becomes codes and a scale in FP32, and is read back as code * scale:
 *   fp8     e4m3 with scale amax / 448 per group of columns or per token, or with a static scale of the tensor
 *   int8    scale amax / 127 per token, or static; with zero points scale (max - min) / 255 and
 *           azp = round(-128 - min / scale)
 *   mxfp8   e4m3 with a power of two per 32 columns
 *   mxfp4   e2m1 with the same scales
 *   nvfp4   e2m1 with an e4m3 scale per 16 columns: amax / 6 times a static divisor of the tensor, by which the scale
 *           is divided again on reading. If the checkpoint has a factor, the divisor is its reciprocal in FP32.
 * (vLLM: per_token_group_quant_fp8, scaled_fp8_quant, scaled_int8_quant, scaled_fp4_quant.) */
#pragma once

#include "verify/values/weight_reader.h"

typedef enum tsr_input_type { TSR_INPUT_PLAIN, TSR_INPUT_FP8, TSR_INPUT_INT8, TSR_INPUT_FP4 } tsr_input_type;

typedef struct tsr_input_coding {
    tsr_input_type type;
    size_t group;       /* columns per scale; 0: all of a token */
    bool zero_points;   /* for int8 */
    bool powers_of_two; /* scales are rounded up to one */
    /* Static scale and zero point of the tensor. scale 0: dynamic. nvfp4: divisor of the e4m3 scales on reading. */
    double scale, zero;
} tsr_input_coding;

/* The caller's choice of input quantization. */
typedef enum tsr_input_choice {
    TSR_INPUTS_STATED, /* as the checkpoint specifies */
    TSR_INPUTS_NONE,
    TSR_INPUTS_FP8_BLOCK, /* per token and 128 channels */
    TSR_INPUTS_FP8_TOKEN,
    TSR_INPUTS_INT8_TOKEN,
    TSR_INPUTS_INT8_AZP,
    TSR_N_INPUT_CHOICES,
} tsr_input_choice;

/* Returns "auto", "none", "fp8-block", ... Static storage. */
const char *tsr_input_choice_name(tsr_input_choice choice);

/* Sets *coding to the input quantization of this weight. Inputs of a plain weight are never quantized.
 * TSR_E_UNSUPPORTED: the checkpoint states an unknown form; the message names an option that helps. */
tsr_status tsr_input_coding_of(tsr_input_coding *coding, tsr_input_choice choice, const tsr_side *side,
                               const tsr_weight *weight, tsr_err *err);

/* Writes "fp8, 128 columns to a scale", ... for people. Returns text. */
const char *tsr_input_coding_text(const tsr_input_coding *coding, char *text, size_t size);

/* Quantizes and dequantizes one row of n in place. */
void tsr_input_quantize(const tsr_input_coding *coding, double *x, size_t n);

/* Returns the nearest BF16, ties to even. */
double tsr_round_bf16(double x);
