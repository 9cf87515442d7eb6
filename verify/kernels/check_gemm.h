/* Does a product of the checkpoint's own weights, in block FP8 or in small groups, come out as it must?
 *
 * Each weight (or set of experts, as a grouped product in both layouts) is multiplied with activations that are
 * quantized as serving does it. Two errors are told apart: what quantization costs, and what each kernel of the device
 * costs over the very same operands. docs/verify.md has the formulas and where the limits come from. Weights in small
 * groups are judged by verify/kernels/mx_product.h, experts one by one. */
#ifndef TSR_VERIFY_KERNELS_CHECK_GEMM_H
#define TSR_VERIFY_KERNELS_CHECK_GEMM_H

#include "verify/evidence/jobs.h"

/* `outs`: bit 1 << tsr_out for each result type. Findings are in *evidence, which is empty or valid before.
 * TSR_E_NOT_APPLICABLE: no tensor of e4m3 in blocks, MXFP4, NVFP4 or MXFP8 is asked for. TSR_E_MISMATCH: `against` lacks a tensor. */
tsr_status tsr_check_gemm(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence,
                          tsr_err *err) TSR_WARN_UNUSED;

/* Whether there is anything that the check takes: as tsr_subjects_exist. */
tsr_status tsr_gemm_applies(const tsr_kernel_options *options, tsr_err *err) TSR_WARN_UNUSED;

#endif
