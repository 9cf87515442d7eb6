/* How consumers quantize the inputs of a linear layer whose weight is quantized: what config.json and the tensors state,
 * or what the caller says instead.
 *
 * An input x becomes codes and a scale in FP32, and is read back as code * scale:
 *   fp8     e4m3 with scale amax / 448 of a group of columns, of a token, or a static one of the tensor
 *   int8    scale amax / 127 of a token, or static; with zero points scale (max - min) / 255 and
 *           azp = round(-128 - min / scale)
 *   mxfp8   e4m3 with a power of two for each 32 columns;  mxfp4: e2m1 likewise
 *   nvfp4   e2m1 with an e4m3 scale for each 16 columns, amax / 6 times a static divisor of the tensor, by which it is
 *           divided again; where the checkpoint has a factor, its reciprocal in FP32
 * (vLLM: per_token_group_quant_fp8, scaled_fp8_quant, scaled_int8_quant, scaled_fp4_quant.) */
#ifndef TSR_VERIFY_FORWARD_INPUTS_H
#define TSR_VERIFY_FORWARD_INPUTS_H

#include "verify/weights/weight_reader.h"

typedef enum tsr_input_type { TSR_INPUT_PLAIN, TSR_INPUT_FP8, TSR_INPUT_INT8, TSR_INPUT_FP4 } tsr_input_type;

typedef struct tsr_input_coding {
    tsr_input_type type;
    size_t group;       /* columns to a scale; 0: all of a token's */
    bool zero_points;   /* of int8 */
    bool powers_of_two; /* scales are rounded up to one */
    double scale, zero; /* static: the tensor's scale, and its zero point; scale 0: by each token or group itself. Of
                            nvfp4 what the e4m3 scales are divided by when they are read */
} tsr_input_coding;

/* What the caller asks for. */
typedef enum tsr_input_choice {
    TSR_INPUTS_STATED, /* as the checkpoint states it */
    TSR_INPUTS_NONE,
    TSR_INPUTS_FP8_BLOCK, /* per token and 128 channels */
    TSR_INPUTS_FP8_TOKEN,
    TSR_INPUTS_INT8_TOKEN,
    TSR_INPUTS_INT8_AZP,
    TSR_N_INPUT_CHOICES,
} tsr_input_choice;

/* "auto", "none", "fp8-block", ... Static storage. */
const char *tsr_input_choice_name(tsr_input_choice choice);

/* What inputs of this weight become. A plain weight's stay as they are, whatever is asked for. TSR_E_UNSUPPORTED: the
 * checkpoint states something that is not known here; the message says which option helps. */
tsr_status tsr_input_coding_of(tsr_input_coding *coding, tsr_input_choice choice, const tsr_side *side,
                               const tsr_weight *weight, tsr_err *err) TSR_WARN_UNUSED;

/* "fp8, 128 columns to a scale", ...: for people. Returns text. */
const char *tsr_input_coding_text(const tsr_input_coding *coding, char *text, size_t size);

/* One row of n, in place. */
void tsr_input_quantize(const tsr_input_coding *coding, double *x, size_t n);

/* The nearest BF16, ties to even. */
double tsr_round_bf16(double x);

#endif
