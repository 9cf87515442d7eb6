/* Causal attention as prefill computes it: of grouped queries, whose heads share keys and values in groups, and of
 * DeepSeek's MLA in its expanded form, where every head has keys and values of its own, and all heads share the rotary
 * part of the key. docs/kernels/prefill.md explains the kernels.
 *
 *   out[i,h,:] = sum over tokens t of softmax_t(scale * s[i,h,t]) * v[t,g,:]
 *   lse[i,h]   = ln sum over t of exp(scale * s[i,h,t]),    s[i,h,t] = <q[i,h,:], [k_nope[t,g,:], k_rope[t,:]]>
 *
 * with g = h / (heads / kv_heads).
 *
 * Sequences lie end to end: b has the queries cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1 and the tokens cu_seqlens_k[b]
 * to cu_seqlens_k[b + 1] - 1, and its queries are its last tokens: of l_q queries and l_k tokens, query i sees the
 * tokens t < l_k - l_q + i + 1. A query that sees no token gets zeros and -inf.
 *
 * Layouts, all contiguous: q [tokens_q][heads][nope + rope] BF16; kv [tokens_k][kv_heads][nope + value] BF16, a
 * head's k_nope before its v, which is what kv_b_proj gives; k_rope [tokens_k][rope] BF16 (rope may be 0); cu_seqlens_q
 * and cu_seqlens_k [batch + 1] int32, non-decreasing, clamped to 0 and tokens_q or tokens_k; out
 * [tokens_q][heads][value] BF16 and out_f32 in F32, before that rounding; lse [tokens_q][heads] F32. Rows before the
 * first sequence and after the last are neither used nor written. A NaN or infinity in kv or k_rope reaches queries of
 * its own sequence only, but also those that do not see its token. scale > 0, finite. No output may overlap an input.
 *
 * The fast kernel needs sm_90, nope 128, rope 64 or 0, value 128, at least one query and token, and q, kv, k_rope and
 * out 16-byte aligned (out_f32: 8); otherwise TSR_MLA_AUTO selects the plain one (one CTA per query and head). It uses
 * the order of tiles that tsr_cuda_prefill_plan writes to the workspace (256-byte aligned). So call it once whenever
 * cu_seqlens has changed, then run every layer. Two concurrent calls need two workspaces. Results have the same bits in
 * every run on one kind of device.
 *
 * Kernel error against the exact value over the same operands, element by element: |out - exact| <=
 *     (2 * D + 2^-8 + 2^-18 + 17 * (ceil(n / 128) * 8 + 2) * 2^-22) * sum over t of p_t |v_t|,   then BF16's rounding
 * where p are the exact probabilities, n the tokens seen and D = scale * 12 * 17 * 2^-22 * max over t of sum |q k_t|;
 * out_f32 does not have the last rounding. Derivation as in mla_decode.h: a step of 16 along a product loses less than
 * 17 * 2^-22 of the sum of magnitudes; a score takes 12 steps, and the values of 128 tokens take 8. D must be small
 * compared with 1. The plain kernel, which uses only FP32, is inside the bound. */
#pragma once

#include "kernels/cuda/mla_decode.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsr_prefill {
    const uint16_t *q, *kv, *k_rope;
    const int32_t *cu_seqlens_q, *cu_seqlens_k; /* device memory */
    uint16_t *out;
    float *out_f32, *lse; /* out, out_f32 and lse may each be NULL */
    void *workspace;
    int64_t batch, heads, kv_heads, tokens_q, tokens_k; /* kv_heads divides heads */
    int32_t nope, rope, value;                          /* the plain kernel supports any sizes, below 6000 in all */
    float scale;
    tsr_mla_kind kind;
} tsr_prefill;

/* Returns the kernel for this problem on this device. Pure. */
tsr_mla_kind tsr_cuda_prefill_choose(const tsr_prefill *args, const tsr_cuda_device *device);

/* Returns the bytes of workspace for this problem on this device; 0 for the plain kernel. Pure. */
size_t tsr_cuda_prefill_workspace(const tsr_prefill *args, const tsr_cuda_device *device);

/* Writes the order of tiles for cu_seqlens to the workspace; does nothing for the plain kernel. The work is quadratic
 * in the batch: meant for at most thousands of sequences. */
tsr_status tsr_cuda_prefill_plan(const tsr_prefill *args, tsr_stream stream, tsr_err *err);

/* Launches the attention. TSR_E_UNSUPPORTED: the requested kernel does not fit the arguments or the device. */
tsr_status tsr_cuda_prefill(const tsr_prefill *args, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
