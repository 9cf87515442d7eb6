/* Checks layouts, conversions and products of integer weights (`verify dequant`).
 *
 * The checkpoint's int8 or int4 codes are written in every layout that accepts the shape (kernels/cpu/ft_layout.h).
 * Each code must be at the address of the formula. Then the words are converted as mixed GEMMs convert them
 * (kernels/cpu/fast_dequant.h). Each value must equal that of plain conversion, bit for bit. In layout T the weights
 * are also multiplied and compared with their originals: verify/kernels/check_weight_only.h.
 *
 * Codes of MXFP4, NVFP4 and MXFP8 are converted to BF16 without a layout: verify/kernels/check_mx_dequant.h. */
#pragma once

#include "verify/evidence/jobs.h"

/* `outs` is limited to F16 and BF16. */
tsr_kernel_check_fn tsr_check_dequant;
tsr_kernel_applies_fn tsr_dequant_applies;
