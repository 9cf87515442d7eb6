/* Does an int8 W8A8 product of the checkpoint's own weights come out as it must, with each of vLLM's four epilogues?
 *
 * The four are: scaled, scaled with a bias, with a zero point for the tensor of activations (azp_with_adj), and with one
 * for each token (azp_adj). Activations have a scale for the tensor or for each token, weights one for the tensor or for
 * each channel. azp_adj is read from the file beside the checkpoint, and is itself checked against the codes. Where the
 * checkpoint states input_scale (and input_zero_point), the epilogues per tensor use these and the azp_with_adj of that
 * file, which must be the zero point times azp_adj. Drawn activations are then stretched to the range of the scale, and
 * given ones must lie within it. Without a stated scale, activations are quantized by their own range. */
#ifndef TSR_VERIFY_KERNELS_CHECK_EPILOGUE_H
#define TSR_VERIFY_KERNELS_CHECK_EPILOGUE_H

#include "verify/evidence/jobs.h"

/* As tsr_check_gemm. TSR_E_NOT_APPLICABLE: no tensor of symmetric int8 with a scale a row or tensor is asked for. */
tsr_status tsr_check_epilogue(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence,
                              tsr_err *err) TSR_WARN_UNUSED;

/* Whether there is anything that the check takes: as tsr_subjects_exist. */
tsr_status tsr_epilogue_applies(const tsr_kernel_options *options, tsr_err *err) TSR_WARN_UNUSED;

#endif
