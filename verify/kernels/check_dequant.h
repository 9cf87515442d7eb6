/* Checks layouts, conversions and products of integer weights (`verify dequant`).
 *
 * The checkpoint's int8 or int4 codes are written in every layout that accepts the shape (kernels/cpu/ft_layout.h).
 * Each code must be at the address of the formula. Then the words are converted as mixed GEMMs convert them
 * (kernels/cpu/fast_dequant.h). Each value must equal that of plain conversion, bit for bit. In layout T the weights
 * are also multiplied and compared with their originals: verify/kernels/check_weight_only.h.
 *
 * Codes of MXFP4, NVFP4 and MXFP8 are converted to BF16 without a layout: verify/kernels/check_mx_dequant.h. */
#ifndef TSR_VERIFY_KERNELS_CHECK_DEQUANT_H
#define TSR_VERIFY_KERNELS_CHECK_DEQUANT_H

#include "verify/evidence/jobs.h"

/* Like tsr_check_gemm, but `outs` is limited to F16 and BF16. TSR_E_NOT_APPLICABLE: no weight of these kinds is
 * selected. */
tsr_status tsr_check_dequant(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence,
                             tsr_err *err) TSR_WARN_UNUSED;

/* Checks that the model has weights for this check. Same statuses as tsr_subjects_exist. */
tsr_status tsr_dequant_applies(const tsr_kernel_options *options, tsr_err *err) TSR_WARN_UNUSED;

#endif
