/* Checks the product of one weight in small groups with activations. Part of tsr_check_gemm.
 *
 * Activations are BF16 (weight-only), and also in the weight's own format if a server can create them: MXFP4 and
 * MXFP8 at run time, NVFP4 by the global scale of the layer's input in the checkpoint.
 *
 * Quantization error: the product of the quantized operands compared with that of the originals. Without originals
 * it is the error of quantizing the activations alone. Kernel error: every kernel of the device compared with double
 * over the same operands. */
#pragma once

#include "verify/kernels/mx_operand.h"

/* `outs` has bit 1 << tsr_out for each result type. A product that cannot be compared is skipped in the evidence,
 * with the reason. TSR_E_MISMATCH: `against` lacks the tensor. */
tsr_status tsr_judge_mx_product(const tsr_mx_subject *subject, unsigned outs, tsr_evidence *evidence, tsr_err *err);
