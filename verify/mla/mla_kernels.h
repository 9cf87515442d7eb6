/* Verifies kernels of latent attention: absorbed decode over a paged cache, and heads divided among ranks.
 *
 * The operands come from the checkpoint. Every kernel of the device gets the same queries in BF16 and the same cache:
 * pages of 64 in shuffled order, with NaN in rows without a token. Its result is compared with the exact result.
 *
 * Bounds, with u = 2^-24:
 * - decode: the bound of kernels/cpu/mla_attention.h, or of kernels/cuda/mla_decode.h for tensor cores, plus the
 *   rounding of a BF16 result.
 * - W_v and W_o of all heads, both in FP32 with r roundings (kernels/cpu/project.h): 1.01 r u sum |W_o| (|W_v| |out|).
 * - the sum over ranks, compared with that result: only the order of summation differs. The bound is
 *   1.01 (r_uncut + r_cut) u sum |W_o a|, with a the input of W_o. r_cut counts the roundings of a rank's share, and
 *   ranks - 1 for the sum over ranks.
 *
 * The RMS error must also be near its expected value. The model assumes independent roundings, each uniformly
 * distributed over half a step h, with a mean square of h^2 / 3. In FP32, h = u |s| for a sum s. Mean squares times 3:
 *
 * - FP32 sums of k products in l steps, T the sum of the products' squares and S their sum: partial sums after i steps
 *   have squares i T / l + (i S / l)^2, in total T l / 2 + S^2 l / 3, times u^2.
 * - scores are such sums, s_t^2 = scale^2 (T / 2 + S^2 / 3) (latent + rope), and change the result by p (v - result):
 *   u^2 sum of s_t^2 (p (v - result))^2.
 * - the sum over n tokens, with exponentials, and the normalizer: u^2 (Q (n / 2 + 3) + result^2 (2 n / 3 + 3)), Q the
 *   sum of (p v)^2.
 * - probabilities in BF16 with tensor cores: 0.541 2^-16 Q. (h is 2^-8 / m for a probability with mantissa m, and
 *   1 / m^2 is 0.541 on average for m from 1 to 2, logarithmically.)
 * - a result in BF16: h^2.
 * - projections have 32 partial sums of l = k / 32 products: u^2 (T (l / 2 + 6) + S^2 (l / 96 + 1)), 6 and 1 for
 *   products and pairwise additions; each addition over ranks u^2 (T + S^2). */
#pragma once

#include "verify/evidence/jobs.h"
#include "verify/forward/tokens/token_choice.h"
#include "verify/mla/mla_reference.h"

typedef struct tsr_mla_subject {
    const tsr_kernel_options *options; /* uses mla.fp8_cache, and ranks, which divides heads */
    const tsr_mla_model *model;
    const tsr_mla_batch *batch;
    const tsr_mla_stages *stages; /* stages of the model, from which operands are rounded */
    const char *name;
    double min_sqnr;   /* least SQNR of the cache's format in dB */
    size_t new_tokens; /* most queries of a sequence */
    /* Sparse attention. Every kernel that accepts lists gets the chosen tokens in shuffled order, with entries of -1
     * between them, and slots without a query get -1 only. Heads are not divided among ranks. */
    const tsr_token_choice *choice; /* the tokens of each query; NULL: all tokens up to its own */
    size_t top_k;                   /* most tokens that a query has in `choice` */
    const char *batch_name;         /* ", sparse", ", sparse prefill"; NULL: "" */
} tsr_mla_subject;

/* Judges y against x, both [rows][cols]. An SQNR below `min_sqnr`, NaN or Inf is a fault. */
void tsr_mla_judge_sqnr(tsr_judgement *judgement, const double *x, const double *y, size_t rows, size_t cols,
                        double min_sqnr);

/* Lists something as skipped, unless it is listed with this reason. */
tsr_status tsr_mla_skip_once(tsr_evidence *evidence, const char *subject, const char *why, tsr_err *err);

/* Runs and judges all kernels. A kernel that does not accept the shape, or a list, is skipped. `since`: see tsr_lap. */
tsr_status tsr_mla_check_kernels(const tsr_mla_subject *subject, tsr_evidence *evidence, double *since, tsr_err *err);
