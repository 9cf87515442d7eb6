/* The kernels of latent attention over a checkpoint's own operands: absorbed decode over a paged cache, and heads cut
 * over ranks with W_v, W_o and the sum over ranks behind it.
 *
 * Every kernel of the device sees the same queries in BF16 and the same cache (pages of 64 in an order that is not
 * theirs, NaN where no token lies), and is held to the exact result over them:
 *
 * - decode: the bound of kernels/cpu/mla_attention.h, or of kernels/cuda/mla_decode.h where tensor cores add, and
 *   BF16's rounding where that is the result's type.
 * - W_v and W_o uncut, both in FP32 with r roundings (kernels/cpu/project.h): 1.01 r u sum |W_o| (|W_v| |out|),
 *   u = 2^-24.
 * - the sum over ranks against that: only the order of summation differs, so 1.01 (r_uncut + r_cut) u sum |W_o a|, a
 *   what W_o is applied to; r_cut are those of a rank's share and ranks - 1 of the sum over ranks.
 *
 * All but FP32 decode are also held to what is to be expected, root mean square. A rounding of s errs by at most half
 * a step h of s, evenly spread: its square is h^2 / 3. Decode: of the result in BF16; with tensor cores of the
 * probabilities besides, where h^2 is 0.541 2^-16 p^2 on average (2^-8 over the mantissa m, and 1 / m^2 is 0.541 for m
 * from 1 to 2, logarithmically). FP32: u^2 s^2 / 3; of k products in 32 lanes of l = k / 32, T the sum of their squares
 * and S their sum, partial sums after i steps have squares i T / k + (i S / k)^2; in all, T l / 2 + S^2 l / 96, then T
 * 6 + S^2 of products and halves, and T + S^2 of each addition over ranks. */
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
