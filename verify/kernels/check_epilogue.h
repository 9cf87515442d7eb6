/* Checks int8 W8A8 products of the checkpoint's weights with vLLM's four epilogues.
 *
 * The four epilogues are: scaled; scaled with a bias; with one zero point for the activation tensor (azp_with_adj);
 * with one zero point per token (azp_adj). Activations have one scale for the tensor or one per token. Weights have
 * one scale for the tensor or one per channel.
 *
 * azp_adj is read from the extra file next to the checkpoint, and is checked against the codes.
 *
 * If the checkpoint has input_scale (and input_zero_point), the epilogues per tensor use them, and also azp_with_adj
 * of that file. azp_with_adj must equal the zero point times azp_adj. Generated activations are then scaled to the
 * range of input_scale; activations from a file must lie in that range. Without input_scale, activations are
 * quantized by their own range. */
#ifndef TSR_VERIFY_KERNELS_CHECK_EPILOGUE_H
#define TSR_VERIFY_KERNELS_CHECK_EPILOGUE_H

#include "verify/evidence/jobs.h"

/* Like tsr_check_gemm. TSR_E_NOT_APPLICABLE: no symmetric int8 tensor with one scale per row or per tensor is
 * selected. */
tsr_status tsr_check_epilogue(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence,
                              tsr_err *err) TSR_WARN_UNUSED;

/* Checks that the model has weights for this check. Same statuses as tsr_subjects_exist. */
tsr_status tsr_epilogue_applies(const tsr_kernel_options *options, tsr_err *err) TSR_WARN_UNUSED;

#endif
