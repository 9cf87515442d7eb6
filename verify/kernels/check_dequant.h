/* Do integer weights survive the interleaved layouts, the tricks that GPUs convert them with, and the products?
 *
 * The checkpoint's own int8 or int4 codes are laid out for every layout that takes the shape
 * (formats/model/ft_layout.h), and each must be at the address that the formula gives. Then the words are
 * converted as the mixed GEMMs do it (kernels/cpu/fast_dequant.h), and each value must equal that of plain conversion,
 * bit by bit. In layout T they are also multiplied, and compared with their originals:
 * verify/kernels/weight_only.h.
 *
 * Codes of MXFP4, NVFP4 and MXFP8 are not laid out: they become BF16 as they lie, verify/kernels/mx_dequant.h. */
#ifndef TSR_VERIFY_KERNELS_CHECK_DEQUANT_H
#define TSR_VERIFY_KERNELS_CHECK_DEQUANT_H

#include "verify/evidence/jobs.h"

/* As tsr_check_gemm; of `outs` only F16 and BF16 matter. TSR_E_NOT_APPLICABLE: no weight of these kinds is asked for. */
tsr_status tsr_check_dequant(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence,
                             tsr_err *err) TSR_WARN_UNUSED;

/* Whether there is anything that the check takes: as tsr_subjects_exist. */
tsr_status tsr_dequant_applies(const tsr_kernel_options *options, tsr_err *err) TSR_WARN_UNUSED;

#endif
