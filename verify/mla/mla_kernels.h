/* The kernels of latent attention over a checkpoint's own operands: absorbed decode over a paged cache, and heads cut
 * over ranks with W_v, W_o and the sum over ranks behind it.
 *
 * Every kernel of the device gets the same queries in BF16 and the same cache (pages of 64 in shuffled order, NaN where
 * there is no token), and is compared with the exact result over them:
 *
 * - decode: the bound of kernels/cpu/mla_attention.h, or of kernels/cuda/mla_decode.h where tensor cores add, and
 *   BF16's rounding where that is the result's type.
 * - W_v and W_o uncut, both in FP32 with r roundings (kernels/cpu/project.h): 1.01 r u sum |W_o| (|W_v| |out|),
 *   u = 2^-24.
 * - the sum over ranks against that: only the order of summation differs, so 1.01 (r_uncut + r_cut) u sum |W_o a|, a
 *   what W_o is applied to; r_cut are those of a rank's share and ranks - 1 of the sum over ranks.
 *
 * All are also held to what is to be expected, root mean square, of roundings that are independent, each evenly spread
 * over half a step h, so that its square is h^2 / 3; in FP32 h = u |s| of a sum s. Of the errors' squares, times 3:
 *
 * - FP32 sums of k products in l steps, T the sum of the products' squares and S their sum: partial sums after i steps
 *   have squares i T / l + (i S / l)^2, in all T l / 2 + S^2 l / 3, times u^2.
 * - scores are such sums, s_t^2 = scale^2 (T / 2 + S^2 / 3) (latent + rope), and move the result by p (v - result):
 *   u^2 sum of s_t^2 (p (v - result))^2.
 * - the sum over n tokens, with exponentials, and the normalizer: u^2 (Q (n / 2 + 3) + result^2 (2 n / 3 + 3)), Q the
 *   sum of (p v)^2.
 * - with tensor cores the probabilities in BF16: 0.541 2^-16 Q. (h is 2^-8 / m of a probability with mantissa m, and
 *   1 / m^2 is 0.541 on average for m from 1 to 2, logarithmically.)
 * - a result in BF16: its h^2.
 * - projections run in 32 lanes of l = k / 32: u^2 (T (l / 2 + 6) + S^2 (l / 96 + 1)), 6 and 1 for products and halves;
 *   each addition over ranks u^2 (T + S^2). */
#ifndef TSR_VERIFY_MLA_MLA_KERNELS_H
#define TSR_VERIFY_MLA_MLA_KERNELS_H

#include "verify/evidence/jobs.h"
#include "verify/mla/mla_reference.h"

typedef struct tsr_mla_subject {
    const tsr_kernel_options *options; /* of its `mla`: new_tokens, ranks, which divide the heads, and fp8_cache */
    const tsr_mla_model *model;
    const tsr_mla_batch *batch;
    const tsr_mla_stages *stages; /* the model's own; operands are rounded from them */
    const char *name;
    double min_sqnr; /* that the cache's format has to leave */
} tsr_mla_subject;

/* Judges y against x, [rows][cols] both: below `min_sqnr`, or with NaN or Inf, it has a fault. */
void tsr_mla_judge_sqnr(tsr_judgement *judgement, const double *x, const double *y, size_t rows, size_t cols,
                        double min_sqnr);

/* A kernel that does not take the shape is noted as skipped. `since`: see tsr_lap. */
tsr_status tsr_mla_check_kernels(const tsr_mla_subject *subject, tsr_evidence *evidence, double *since,
                                 tsr_err *err) TSR_WARN_UNUSED;

#endif
