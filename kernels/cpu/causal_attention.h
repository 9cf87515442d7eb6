/* Declares causal attention of DeepSeek's MLA in its expanded form on the CPU.
 *
 * It makes one pass over the tokens, with an online softmax in FP32. The definition, layouts and visible tokens are
 * those of kernels/cuda/prefill.h.
 *
 * Kernel error as in mla_attention.h, with d = nope + rope: |out - exact| <= (2.1 D + (2 n + 16) u) * sum of p |v|. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct tsr_causal_attention {
    const uint16_t *q, *kv, *k_rope;            /* [tokens_q][heads][nope + rope], [tokens_k][heads][nope + value],
                                                   [tokens_k][rope], BF16 */
    const int32_t *cu_seqlens_q, *cu_seqlens_k; /* [batch + 1], non-decreasing, within tokens_q and tokens_k */
    float *out;                                 /* [tokens_q][heads][value] */
    size_t batch, heads, tokens_q, tokens_k, nope, rope, value;
    float scale;
} tsr_causal_attention;

/* Computes attention. Allocates nothing and cannot fail. Thread-safe if `out` differs. */
void tsr_causal_attention_run(const tsr_causal_attention *args);
