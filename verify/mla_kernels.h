/* The kernels of latent attention over a checkpoint's own operands: absorbed decode over a paged cache, and heads cut
 * over ranks with W_v, W_o and the sum over ranks behind it.
 *
 * Every kernel of the device sees the same queries in BF16 and the same cache (pages of 64 in an order that is not
 * theirs, NaN where no token lies), and is held to the exact result over them:
 *   decode: the bound of kernels/cpu/mla_attention.h, or of kernels/cuda/mla_decode.h where tensor cores add, and
 * BF16's rounding where that is the result's type; W_v and W_o uncut, both in FP32 (kernels/cpu/project.h), roundings
 * r: 1.01 r 2^-24 sum |W_o| (|W_v| |out|); the ranks' sum against it: only the order of summation differs, so 1.01
 * (r_cut + r_uncut) 2^-24 sum |W_o a|, a what W_o is applied to, r_cut those of a rank's share and ranks - 1 of the sum
 * over ranks. */
#ifndef TSR_VERIFY_MLA_KERNELS_H
#define TSR_VERIFY_MLA_KERNELS_H

#include "verify/jobs.h"
#include "verify/mla_reference.h"

typedef struct tsr_mla_subject {
    const tsr_kernel_options *options; /* of its `mla`: new_tokens, ranks, which divide the heads, and fp8_cache */
    const tsr_mla_model *model;
    const tsr_mla_batch *batch;
    const tsr_mla_stages *stages; /* the model's own; operands are rounded from them */
    const char *name;
    double min_sqnr; /* that the cache's format has to leave */
} tsr_mla_subject;

/* A kernel that does not take the shape is noted as skipped. `since`: see tsr_lap. */
tsr_status tsr_mla_check_kernels(const tsr_mla_subject *subject, tsr_evidence *evidence, double *since,
                                 tsr_err *err) TSR_WARN_UNUSED;

#endif
