/* The indexer of sparse latent attention (DeepSeek-V3.2, GLM-5): its sizes, and its scores in double.
 *
 *   q [heads][dim] = W_q_b q_a_norm;  k [dim] = LayerNorm of W_k h;  RoPE turns the first elements of both
 *   w [heads] = W_w h * heads^-0.5
 *   score of a token = dim^-0.5 * sum over heads of w * relu(q . k)
 *
 * A query attends to the `kept` tokens with the largest scores. Sources: DeepSeek-V3.2's inference/model.py;
 * modeling_deepseek_v32.py and modeling_glm_moe_dsa.py of transformers. */
#pragma once

#include "verify/mla/rope.h"

/* The epsilon of the LayerNorm of keys. */
#define TSR_INDEX_EPS 1e-6

typedef struct tsr_index_sizes {
    size_t heads, dim, kept; /* heads 0: there is no indexer */
    bool adjacent;           /* RoPE turns pairs (2i, 2i + 1); otherwise (i, i + pairs) */
    tsr_rope rope;
} tsr_index_sizes;

/* Reads index_n_heads, index_head_dim, index_topk and RoPE from config.json. TSR_E_FORMAT: a size is missing or wrong.
 * TSR_E_UNSUPPORTED: config.json states the other kind of RoPE, or an unknown type. */
tsr_status tsr_index_sizes_read(tsr_index_sizes *sizes, const tsr_checkpoint *checkpoint, bool adjacent,
                                tsr_arena *arena, tsr_err *err);

/* One query and the keys that it sees. */
typedef struct tsr_index_query {
    const double *q, *weights, *k; /* [heads][dim], [heads], [keys][dim] */
    size_t heads, dim, keys;
    bool without_relu; /* a deliberate mistake */
} tsr_index_query;

/* Computes scores[keys] without the factor dim^-0.5. Heads are added in their order. */
void tsr_index_score(const tsr_index_query *query, double *scores);
