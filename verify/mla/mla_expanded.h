/* The kernels of prefill over a checkpoint's own operands: causal attention with every head's keys and values expanded
 * from the latent. Each kernel of the device sees the same queries, keys and values in BF16, sequence behind sequence,
 * and is held to the exact result over them as in verify/mla/mla_kernels.h, with the bounds of
 * kernels/cpu/causal_attention.h and kernels/cuda/mla_prefill.h. What rounding them costs is told apart. */
#ifndef TSR_VERIFY_MLA_MLA_EXPANDED_H
#define TSR_VERIFY_MLA_MLA_EXPANDED_H

#include "verify/mla/mla_kernels.h"

/* Nothing is done for a folded layer, which has nothing to expand with. */
tsr_status tsr_mla_check_expanded(const tsr_mla_subject *subject, tsr_evidence *evidence, double *since,
                                  tsr_err *err) TSR_WARN_UNUSED;

#endif
