/* Decoding attention of DeepSeek's MLA in its absorbed form: all heads attend to one shared latent row for each token.
 * docs/kernels/mla_decode.md and mla_sparse.md explain the kernels.
 *
 *   out[b,i,h,:] = sum over tokens t of softmax_t(scale * <q[b,i,h,:], cache row t of b>) * first `latent` of that row
 *   lse[b,i,h]   = ln sum over t of exp(scale * <q[b,i,h,:], cache row t of b>)
 *
 * over t < seqlens[b] - s_q + i + 1: the s_q queries are the sequence's last tokens. A query that sees no token gets
 * zeros and -inf.
 *
 * Layouts, all contiguous: q [batch][s_q][heads][latent + rope] BF16; cache [pages][page][latent + rope] BF16; token t
 * of b is row t % page of page block_table[b][t / page]; block_table [batch][max_pages], seqlens [batch] int32, clamped
 * to 0 and max_pages * page; out [batch][s_q][heads][latent] BF16; lse [batch][s_q][heads] F32. Entries of block_table
 * past a sequence's end and cache rows past its last token are never used. scale > 0, finite. No output may overlap an
 * input.
 *
 * With `indices`, query i of b attends only to the rows of the cache that indices[b][i][0..top_k) lists: page * page
 * size + row. Negative entries are none, and may be anywhere. Two equal entries count twice. block_table, seqlens and
 * max_pages are not used then, nor are rows of the cache that a query does not list.
 *
 * With `fp8` a row of the cache has `latent` e4m3 codes, a multiple of 128, then an FP32 scale for each 128 of them,
 * and `rope` BF16, an even number (656 bytes for 512 + 64: FlashMLA's FP8 cache). Scales are powers of two, 2^-100 to
 * 2^100.
 *
 * The fast kernel needs sm_90, latent 512, rope 64, page 64 without indices, and q, cache and out 16-byte aligned;
 * otherwise TSR_MLA_AUTO selects the plain one. The fast kernel uses the schedule that tsr_cuda_mla_plan writes to the
 * workspace (256-byte aligned), which divides the pages of all sequences evenly among the multiprocessors. Call it once
 * whenever seqlens, batch, s_q, heads or top_k has changed, then decode every layer. Two concurrent decodes need two
 * workspaces. Results have the same bits in every run on one kind of device.
 *
 * Kernel error against the exact value over the same operands, element by element: |out - exact| <=
 *     (2 * D + 2^-8 + 2^-18 + 17 * (ceil(n / 64) * 4 + 2) * 2^-22) * sum over t of p_t |v_t|,   then BF16's rounding
 * where p are the exact probabilities, n the tokens seen, or top_k, and D = scale * 36 * 17 * 2^-22 * max over t of sum
 * |q k_t|. Derivation: a step of 16 along the product aligns the accumulator and 16 products, and loses less than 2^-22
 * of the sum of magnitudes for each. A score takes 36 steps, and D bounds its error; with that of the normalizer, it
 * changes a probability by a factor within exp(+-2 D). Probabilities are rounded to BF16 (2^-8 covers numerator and
 * FP32 normalizer). Exponentials, rescalings and the combination of parts are FP32 (2^-18). n tokens take 4 * ceil(n /
 * 64) steps. D must be small compared with 1. The plain kernel, which uses only FP32, is inside the bound. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tsr_mla_kind {
    TSR_MLA_AUTO,
    TSR_MLA_PLAIN, /* the definition: one CTA per query and head, no workspace, any latent + rope below 6000 */
    TSR_MLA_FAST,
} tsr_mla_kind;

typedef struct tsr_mla_decode {
    const uint16_t *q;
    const void *cache;
    const int32_t *block_table, *seqlens; /* device memory */
    const int32_t *indices;               /* [batch][s_q][top_k]; NULL: all tokens up to the query's own */
    uint16_t *out;
    float *lse; /* may be NULL */
    void *workspace;
    int64_t batch, s_q, heads, pages, max_pages, top_k;
    int32_t latent, rope, page, fp8;
    float scale;
    tsr_mla_kind kind;
} tsr_mla_decode;

/* Returns the kernel for this problem on this device. Pure. */
tsr_mla_kind tsr_cuda_mla_choose(const tsr_mla_decode *args, const tsr_cuda_device *device);

/* Returns the bytes of workspace for this problem on this device, for any seqlens; 0 for the plain kernel. Pure. */
size_t tsr_cuda_mla_workspace(const tsr_mla_decode *args, const tsr_cuda_device *device);

/* Writes the schedule for seqlens to the workspace and prepares the kernel on the current device, as the first decode
 * there requires; does nothing for the plain kernel. Of `args` only seqlens, workspace and the members that
 * tsr_cuda_mla_workspace reads are used; of indices, only if it is NULL. */
tsr_status tsr_cuda_mla_plan(const tsr_mla_decode *args, tsr_stream stream, tsr_err *err);

/* Launches the decoding. TSR_E_UNSUPPORTED: the requested kernel does not fit the arguments or the device. */
tsr_status tsr_cuda_mla_decode(const tsr_mla_decode *args, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
