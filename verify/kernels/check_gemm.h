/* Verifies products of the checkpoint's weights, in block FP8 or in small groups (`verify gemm`).
 *
 * Each weight is multiplied with activations that are quantized as in serving. A set of experts is a grouped
 * product, in both layouts. Two errors are reported separately: the quantization error, and the error of each kernel
 * of the device over the same operands. docs/verify-kernels.md contains the formulas and derives the limits. Weights
 * in small groups are judged by verify/kernels/mx_product.h, one expert at a time. */
#ifndef TSR_VERIFY_KERNELS_CHECK_GEMM_H
#define TSR_VERIFY_KERNELS_CHECK_GEMM_H

#include "verify/evidence/jobs.h"

/* `outs` has bit 1 << tsr_out for each result type. Findings are added to *evidence, which may be empty.
 * TSR_E_NOT_APPLICABLE: no tensor of e4m3 in blocks, MXFP4, NVFP4 or MXFP8 is selected. TSR_E_MISMATCH: `against`
 * lacks a tensor. */
tsr_status tsr_check_gemm(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence,
                          tsr_err *err) TSR_WARN_UNUSED;

/* Checks that the model has weights for this check. Same statuses as tsr_subjects_exist. */
tsr_status tsr_gemm_applies(const tsr_kernel_options *options, tsr_err *err) TSR_WARN_UNUSED;

#endif
