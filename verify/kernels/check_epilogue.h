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
#pragma once

#include "verify/evidence/jobs.h"

/* For symmetric int8 with one scale per row or per tensor. */
tsr_kernel_check_fn tsr_check_epilogue;
tsr_kernel_applies_fn tsr_epilogue_applies;
