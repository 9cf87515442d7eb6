/* Verifies products of the checkpoint's weights, in block FP8 or in small groups (`verify gemm`).
 *
 * Each weight is multiplied with activations that are quantized as in serving. A set of experts is a grouped
 * product, in both layouts. Two errors are reported separately: the quantization error, and the error of each kernel
 * of the device over the same operands. docs/verify-kernels.md contains the formulas and derives the limits. Weights
 * in small groups are judged by verify/kernels/mx_product.h, one expert at a time. */
#pragma once

#include "verify/evidence/jobs.h"

/* For e4m3 in blocks, MXFP4, NVFP4 and MXFP8. */
tsr_kernel_check_fn tsr_check_gemm;
tsr_kernel_applies_fn tsr_gemm_applies;
