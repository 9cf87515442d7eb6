/* Does a block-FP8 product of the checkpoint's own weights come out as it must?
 *
 * Each weight (or set of experts, as a grouped product in both layouts) is multiplied with activations that are
 * quantized as serving does it. Two errors are told apart: what quantization costs, and what each kernel of the device
 * costs over the very same operands. docs/verify.md has the formulas and where the limits come from. */
#ifndef TSR_VERIFY_KERNELS_CHECK_GEMM_H
#define TSR_VERIFY_KERNELS_CHECK_GEMM_H

#include "verify/evidence/jobs.h"

/* `outs`: bit 1 << tsr_out for each result type. Findings are in *evidence, which is empty or valid before.
 * TSR_E_UNSUPPORTED: no tensor of e4m3 in blocks is asked for. TSR_E_MISMATCH: `against` lacks a tensor. */
tsr_status tsr_check_gemm(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence,
                          tsr_err *err) TSR_WARN_UNUSED;

#endif
