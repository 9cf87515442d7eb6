/* A whole model's forward pass over its checkpoint: embedding, attention, router, experts, norms, head.
 *
 * Weights are what a consumer gets: scales applied, of any format that Tessera reads. They are read layer by layer, band
 * by band, and never held whole. Sums are in double. A pass is either exact, and the only rounding is that of double
 * precision; or as served: inputs of quantized layers are quantized (verify/forward/inputs.h), and what consumers keep in
 * BF16 between their kernels is rounded to it.
 *
 *   x = embedding[token];  layer: x += attention(norm(x)), x += mlp(norm(x));  logits = norm(x) W_head^T
 *
 * Families: the table in forward_config.c (transformers' model files and DeepSeek-V3's inference/model.py). Routers:
 *   sigmoid scores, chosen by score + e_score_correction_bias among the topk_group groups whose two best are the best;
 *   softmax scores (deepseek_v2: among the groups whose best is the best, unless topk_method is greedy).
 * Weights of the chosen are scores, divided by their sum where norm_topk_prob is on, times routed_scaling_factor. */
#ifndef TSR_VERIFY_FORWARD_FORWARD_H
#define TSR_VERIFY_FORWARD_FORWARD_H

#include "verify/forward/forward_ops.h"
#include "verify/forward/tokens.h"
#include "verify/mla/rope.h"
#include "verify/weights/compare.h"

/* How a family's layers differ from Llama's: bits of a set. */
typedef enum tsr_trait {
    TSR_LATENT = 1,            /* attention: verify/mla/mla_model.h reads its sizes */
    TSR_SIGMOID = 2,           /* router */
    TSR_GAIN_FROM_ONE = 4,     /* norms multiply by 1 + weight */
    TSR_FOUR_NORMS = 8,        /* attention and MLP have one behind them, too */
    TSR_SCALED_EMBEDDING = 16, /* by sqrt(hidden) */
    TSR_PARTIAL_ROPE = 32,     /* partial_rotary_factor says of how much of a head */
    TSR_NORMALIZED = 64,       /* weights of the chosen experts are always divided by their sum */
    TSR_STACKED_EXPERTS = 128, /* gate_up_proj and down_proj of all experts, biases, gates and ups in turn */
    TSR_LOCAL_ROPE = 256,      /* layers with a window have a RoPE of their own */
} tsr_trait;

/* Which layers have a window, unless layer_types says so. */
typedef enum tsr_windows {
    TSR_WINDOW_UNKNOWN, /* none is computed: what is longer is refused */
    TSR_WINDOW_ALL,
    TSR_WINDOW_EVEN,
    TSR_WINDOW_PATTERN, /* all but every sliding_window_pattern-th */
    TSR_WINDOW_LATER,   /* from max_window_layers on, where use_sliding_window is on */
} tsr_windows;

/* Names below model.layers.N. */
typedef struct tsr_moe_names {
    const char *router, *experts, *shared, *shared_gate, *gate, *up, *down;
} tsr_moe_names;

typedef struct tsr_family_row {
    const char *type; /* model_type; NULL ends the table */
    unsigned traits;
    tsr_windows windows;
    const tsr_moe_names *names;
} tsr_family_row;

typedef struct tsr_forward {
    const tsr_side *side;
    const tsr_family_row *family;
    unsigned traits;
    size_t layers, hidden, vocabulary;
    size_t heads, kv_heads, head_dim; /* of grouped-query attention */
    tsr_rope rope, local_rope; /* of grouped-query attention; pairs (i, i + turned / 2) of a head's first elements */
    size_t window;             /* SIZE_MAX: none */
    bool *has_window;          /* [layers] */
    double eps, attention_scale, score_cap, logit_cap; /* a cap of 0: none */
    tsr_gate gate;
    double gate_limit;
    bool tied;
    struct tsr_router {
        bool sigmoid;    /* groups are ranked by their two best, weights are always scaled; else softmax: by their
                            best, and scaled only where they are not divided */
        bool normalized; /* norm_topk_prob */
        size_t chosen, groups, groups_kept;
        double scale;
    } router;

    /* Set by the caller. */
    tsr_ops *ops; /* borrowed */
    bool served;
    tsr_input_choice inputs; /* with `served` */

    /* What the layers so far have shown. */
    uint64_t bytes_read; /* of weights */
    double noise; /* of the last layer: what its coarsest linear layer is expected to lose, as a share of power */
    tsr_input_coding input_coding; /* the coarsest there was */
    tsr_arena arena;
} tsr_forward;

/* Borrows `side`, whose weights may come from tsr_weights_survey. TSR_E_UNSUPPORTED: a family, activation, window or
 * RoPE that this does not know. TSR_E_FORMAT: config.json lacks something. */
tsr_status tsr_forward_open(tsr_forward *forward, const tsr_side *side, tsr_err *err) TSR_WARN_UNUSED;
void tsr_forward_close(tsr_forward *forward);

/* The families' names, separated by ", ". Returns text. */
const char *tsr_forward_families(char *text, size_t size);

/* Bytes that a pass over so many tokens takes at most, over two inputs at once as a comparison has them, by config.json;
 * weights are read band by band, and are not among them but for kv_b_proj and one stacked expert. */
uint64_t tsr_forward_memory(const tsr_forward *forward, size_t tokens, size_t longest);

/* Positions whose logits are computed at a time. */
size_t tsr_forward_chunk(const tsr_forward *forward, size_t positions);

/* x [count][hidden], in the ops' memory as all activations. */
tsr_status tsr_forward_embed(tsr_forward *forward, const tsr_tokens *tokens, double *x, tsr_err *err) TSR_WARN_UNUSED;

/* Layer `layer`, in place. `choices` (may be NULL) is [count][router.chosen]: the experts of each token, best first, on
 * the host; *routed says whether the layer has any. TSR_E_FORMAT: a tensor is missing. TSR_E_SHAPE: one is not as
 * config.json has it. TSR_E_CANCELLED. */
tsr_status tsr_forward_layer(tsr_forward *forward, size_t layer, const tsr_tokens *tokens, double *x, uint32_t *choices,
                             bool *routed, tsr_err *err) TSR_WARN_UNUSED;

/* Final norm and head, or the embedding where it is tied: logits [n][vocabulary] of n rows of x, on the host. */
tsr_status tsr_forward_logits(tsr_forward *forward, const double *x, size_t n, double *logits,
                              tsr_err *err) TSR_WARN_UNUSED;

#endif
