/* Verifies prefill kernels with a checkpoint's own operands.
 *
 * Prefill is causal attention with the keys and values of every head expanded from the latent. Each kernel gets the
 * same queries, keys and values in BF16, one sequence after the other. Its result is compared with the exact one as
 * in verify/mla/mla_kernels.h, with the bounds of kernels/cpu/causal_attention.h and kernels/cuda/prefill.h. The
 * error of rounding the operands is reported separately. */
#pragma once

#include "verify/mla/mla_kernels.h"

/* Does nothing for a folded layer, which cannot be expanded. */
tsr_status tsr_mla_check_expanded(const tsr_mla_subject *subject, tsr_evidence *evidence, double *since, tsr_err *err);
