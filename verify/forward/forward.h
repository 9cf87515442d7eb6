/* A whole model's forward pass over its checkpoint, in double: embedding, attention, router, experts, norms, head.
 *
 * Weights are what a consumer gets: scales applied, of any format that Tessera reads. They are read layer by layer, row
 * by row, and never held whole. Activations are not quantized, and the only rounding is that of double precision.
 *
 *   x = embedding[token];  layer: x += attention(norm(x)), x += mlp(norm(x));  logits = norm(x) W_head^T
 *
 * Families (transformers' model files and DeepSeek-V3's inference/model.py): llama, mistral, qwen2, qwen3 and qwen3_moe
 * with grouped-query attention (biases and norms of queries and keys where the checkpoint has them);
 * deepseek_v2, deepseek_v3 and kimi_k2 with latent attention (verify/mla/mla_reference.h). Routers:
 *   sigmoid scores, chosen by score + e_score_correction_bias among the topk_group groups whose two best are the best;
 *   softmax scores (deepseek_v2: among the groups whose best is the best, unless topk_method is greedy).
 * Weights of the chosen are scores, divided by their sum where norm_topk_prob is on, times routed_scaling_factor. */
#ifndef TSR_VERIFY_FORWARD_FORWARD_H
#define TSR_VERIFY_FORWARD_FORWARD_H

#include "verify/forward/tokens.h"
#include "verify/mla/rope.h"
#include "verify/weights/compare.h"

typedef struct tsr_forward {
    const tsr_side *side;
    size_t layers, hidden, vocabulary;
    size_t heads, kv_heads, head_dim; /* of grouped-query attention */
    bool latent;                      /* attention is latent: verify/mla/mla_model.h reads its sizes */
    tsr_rope rope;                    /* of grouped-query attention; halves are turned: pairs (i, i + head_dim / 2) */
    size_t window; /* of attention: longer sequences are refused, since no window is computed; SIZE_MAX: none */
    double eps;
    struct tsr_router {
        bool sigmoid;    /* groups are ranked by their two best, weights are always scaled; else softmax: by their
                            best, and scaled only where they are not divided */
        bool normalized; /* norm_topk_prob */
        size_t chosen, groups, groups_kept;
        double scale;
    } router;
    unsigned threads;          /* no result depends on it */
    const atomic_bool *cancel; /* may be NULL */
    tsr_arena arena;
} tsr_forward;

/* Borrows `side`, whose weights may come from tsr_weights_survey. TSR_E_UNSUPPORTED: a family, activation, window or
 * RoPE that this does not know. TSR_E_FORMAT: config.json lacks something. */
tsr_status tsr_forward_open(tsr_forward *forward, const tsr_side *side, tsr_err *err) TSR_WARN_UNUSED;
void tsr_forward_close(tsr_forward *forward);

/* Bytes that a pass over so many tokens takes at most, over two inputs at once as a comparison has them, by config.json;
 * weights are read band by band, and are not among them but for kv_b_proj. */
uint64_t tsr_forward_memory(const tsr_forward *forward, size_t tokens, size_t longest);

/* x [count][hidden]. */
tsr_status tsr_forward_embed(const tsr_forward *forward, const tsr_tokens *tokens, double *x,
                             tsr_err *err) TSR_WARN_UNUSED;

/* Layer `layer`, in place. `choices` (may be NULL) is [count][router.chosen]: the experts of each token, best first;
 * *routed says whether the layer has any. TSR_E_FORMAT: a tensor is missing. TSR_E_SHAPE: one is not as config.json has
 * it. TSR_E_CANCELLED. */
tsr_status tsr_forward_layer(const tsr_forward *forward, size_t layer, const tsr_tokens *tokens, double *x,
                             uint32_t *choices, bool *routed, tsr_err *err) TSR_WARN_UNUSED;

/* Final norm and head, or the embedding where it is tied: logits [n][vocabulary] of n rows of x. */
tsr_status tsr_forward_logits(const tsr_forward *forward, const double *x, size_t n, double *logits,
                              tsr_err *err) TSR_WARN_UNUSED;

#endif
