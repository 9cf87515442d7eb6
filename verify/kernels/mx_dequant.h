/* Do the codes of one weight in small groups become the values that the format defines? Part of tsr_check_dequant.
 *
 * Every kernel's BF16 has to be, bit for bit, the FP32 product of code and scale, rounded once more. */
#ifndef TSR_VERIFY_KERNELS_MX_DEQUANT_H
#define TSR_VERIFY_KERNELS_MX_DEQUANT_H

#include "verify/kernels/mx_operand.h"

tsr_status tsr_judge_mx_dequant(const tsr_mx_subject *subject, tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

#endif
