/* Does the product of one weight in small groups with activations come out as it must? Part of tsr_check_gemm.
 *
 * Activations are BF16 (weight-only), and in the weight's own format where a server can make them: MXFP4 and MXFP8
 * while it runs, NVFP4 by the global scale that the checkpoint states for the layer's input. Quantization error: the
 * product of the quantized operands against that of the originals; without originals, of what quantizing the activations
 * costs alone. Kernel error: every kernel of the device against double over the same operands. */
#ifndef TSR_VERIFY_KERNELS_MX_PRODUCT_H
#define TSR_VERIFY_KERNELS_MX_PRODUCT_H

#include "verify/kernels/mx_operand.h"

/* `outs`: bit 1 << tsr_out for each result type. What cannot be compared is skipped in the evidence, with the reason.
 * TSR_E_MISMATCH: `against` lacks the tensor. */
tsr_status tsr_judge_mx_product(const tsr_mx_subject *subject, unsigned outs, tsr_evidence *evidence,
                                tsr_err *err) TSR_WARN_UNUSED;

#endif
