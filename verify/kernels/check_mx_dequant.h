/* Checks the values of one weight in small groups. Part of tsr_check_dequant.
 *
 * The BF16 value of every kernel must equal, bit for bit, the FP32 product of code and scale, rounded once more. */
#pragma once

#include "verify/kernels/mx_operand.h"

tsr_status tsr_judge_mx_dequant(const tsr_mx_subject *subject, tsr_evidence *evidence, tsr_err *err);
