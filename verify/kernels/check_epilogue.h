/* Does an int8 W8A8 product of the checkpoint's own weights come out as it must, with each of vLLM's four epilogues?
 *
 * Scaled, scaled + bias, azp per tensor (azp_with_adj) and azp per token (azp_adj), scales of activations per tensor or
 * token, of weights per tensor or channel. azp_adj is the one that lies beside the checkpoint, and is itself held to
 * the codes. Where the checkpoint states input_scale (and input_zero_point), the epilogues per tensor take these, and
 * the azp_with_adj that lies beside it, which is held to zero point times azp_adj; drawn activations are then stretched
 * to what the scale reaches, and given ones are held to it. All others are quantized as they come. */
#ifndef TSR_VERIFY_KERNELS_CHECK_EPILOGUE_H
#define TSR_VERIFY_KERNELS_CHECK_EPILOGUE_H

#include "verify/evidence/jobs.h"

/* As tsr_check_gemm. TSR_E_UNSUPPORTED: no tensor of symmetric int8 with a scale a row or tensor is asked for. */
tsr_status tsr_check_epilogue(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence,
                              tsr_err *err) TSR_WARN_UNUSED;

#endif
