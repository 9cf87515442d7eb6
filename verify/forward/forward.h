/* Computes a model's forward pass from its checkpoint: embedding, attention, router, experts, norms, head.
 *
 * Weights have the values that a consumer gets, with scales applied, in any format that Tessera reads. They are read
 * by layer and in bands, and are never complete in memory. Sums are in double. There are two kinds of passes. An exact
 * pass has only the rounding of double precision. A pass as served also quantizes the inputs of quantized layers
 * (verify/forward/inputs.h), and rounds to BF16 where consumers store BF16 between their kernels.
 *
 *   x = embedding[token];  layer: x += attention(norm(x)), x += mlp(norm(x));  logits = norm(x) W_head^T
 *
 * Families: the table in forward_families.c (sources: transformers' model files, DeepSeek-V3's inference/model.py).
 * Routers: sigmoid scores choose by score + e_score_correction_bias among the topk_group groups with the best pairs of
 * experts. Softmax scores choose by score (deepseek_v2: among the groups with the best experts, unless topk_method is
 * greedy). Weights of the chosen experts are their scores, divided by their sum if norm_topk_prob is true, times
 * routed_scaling_factor. */
#pragma once

#include "verify/compare/compare.h"
#include "verify/forward/collect/collector.h"
#include "verify/forward/forward_ops.h"
#include "verify/forward/tokens/tokens.h"
#include "verify/mla/rope.h"

/* Differences of a family's layers from Llama's: a set of bits. */
typedef enum tsr_trait {
    TSR_LATENT = 1 << 0,           /* attention: verify/mla/mla_model.h reads its sizes */
    TSR_SIGMOID = 1 << 1,          /* router */
    TSR_GAIN_FROM_ONE = 1 << 2,    /* norms multiply by 1 + weight */
    TSR_SOFT_CAPS = 1 << 3,        /* soft caps, query_pre_attn_scalar instead of head_dim, gelu by default */
    TSR_SCALED_EMBEDDING = 1 << 4, /* embedding times sqrt(hidden) */
    TSR_PARTIAL_ROPE = 1 << 5,     /* RoPE on the partial_rotary_factor of each head */
    TSR_NORMALIZED = 1 << 6,       /* weights of the chosen experts are always divided by their sum */
    TSR_CLAMPED = 1 << 7,          /* gates of gpt-oss */
    TSR_SINKS = 1 << 8,            /* attention has one more logit for each head */
    TSR_LOCAL_ROPE = 1 << 9,       /* layers with a window have a RoPE of their own, of base rope_local_base_freq */
    TSR_LOCAL_PLAIN = 1 << 10,     /* layers with a window have a RoPE of their own, of base rope_theta, not scaled */
    TSR_WINDOW_ROPE = 1 << 11,     /* if there are windows, layers without one have no RoPE */
    TSR_LISTED_ROPE = 1 << 12,     /* layers without RoPE: no_rope_layers, or each no_rope_layer_interval-th */
    TSR_ADJACENT_ROPE = 1 << 13,   /* pairs (2i, 2i + 1) of a head; with TSR_LATENT, of the indexer */
    TSR_ALPHA_ROPE = 1 << 14,      /* RoPE type dynamic: base times alpha^(d / (d - 2)) at all lengths */
    TSR_WIDE_NORMS = 1 << 15,      /* norms of q and k are over all heads of a token */
    TSR_LATE_NORMS = 1 << 16,      /* norms of q and k follow RoPE, and are query_layernorm and key_layernorm */
    TSR_MULTIPLIERS = 1 << 17,     /* embedding_, attention_, residual_multiplier and logits_scaling */
    TSR_OUTPUT_GATE = 1 << 18,     /* q_proj has a gate beside each head, and attention is multiplied by its sigmoid */
    TSR_STATED_ROPE = 1 << 19,     /* RoPE only if position_embedding_type is rope, or mla_use_nope is false */
    TSR_ONE_BLOCK = 1 << 20,       /* a layer is one block, `mixer`, and has the halves of others by turns */
    TSR_GLOBAL_HEADS = 1 << 21,    /* layers without a window have heads of other sizes, whose keys may be values */
    TSR_VALUE_NORM = 1 << 22,      /* values have a norm without a gain, and scores are not divided */
    TSR_LAYER_SCALAR = 1 << 23,    /* the output of a layer is multiplied by layer_scalar */
    TSR_LONG_QUERIES = 1 << 24,    /* queries grow with the position, by llama_4_scaling_beta */
    TSR_CENTERED = 1 << 25,        /* norms subtract the mean first */
    TSR_PARALLEL = 1 << 26,        /* attention and MLP have the same input; logits are multiplied by logit_scale */
    TSR_SHARED_CHOICE = 1 << 27,   /* layers may attend to the tokens that an earlier layer chose */
    TSR_PAIRED_GROUPS = 1 << 28,   /* router: groups and weights as with sigmoid scores, of softmax scores */
    TSR_STREAMS = 1 << 30,         /* DeepSeek-V4: hyper-connections, compressed attention, experts by token */
    TSR_WINDOW_HEADS = 1 << 29,    /* layers with a window have other numbers of keys, and sinks; values are narrower */
} tsr_trait;

/* The block of a layer in place of attention. Names in layer_types: model/layer_kinds.c. */
typedef enum tsr_layer_kind {
    TSR_LAYER_FULL,
    TSR_LAYER_WINDOW,
    TSR_LAYER_INDEXED,    /* an indexer chooses the tokens of full attention, or entries of a compressed cache */
    TSR_LAYER_COMPRESSED, /* a window, and all entries of a compressed cache */
    TSR_LAYER_DELTA,
    TSR_LAYER_KIMI, /* a delta net of Kimi's */
    TSR_LAYER_SCAN, /* Mamba-2 */
    TSR_LAYER_MLP,  /* none: an MLP or experts alone */
} tsr_layer_kind;

/* Kinds of the layers, if there are no layer_types. */
typedef enum tsr_layer_rule {
    TSR_WINDOW_UNKNOWN, /* windows are not computed; longer sequences are refused */
    TSR_WINDOW_ALL,
    TSR_WINDOW_EVEN,
    TSR_WINDOW_PATTERN, /* all except every sliding_window_pattern-th */
    TSR_WINDOW_LATER,   /* from max_window_layers on, if use_sliding_window is on */
    TSR_WINDOW_FROM,    /* from max_window_layers on */
    TSR_WINDOW_LISTED,  /* layer_types or sliding_window_pattern is required if there are windows */
    TSR_DELTA_PATTERN,  /* delta nets except every full_attention_interval-th */
    TSR_KIMI_LISTED,    /* Kimi's delta nets and full attention, by linear_attn_config if there are no layer_types */
    TSR_SCAN_LISTED,    /* Mamba-2 and full attention. layer_types are required */
    TSR_BLOCKS_LISTED,  /* these and MLPs. layers_block_type or hybrid_override_pattern is required */
    TSR_INDEXED_ALL,
    TSR_COMPRESSED_LISTED, /* by layer_types or compress_ratios */
    TSR_INDEXED_LISTED, /* indexed and full attention, by layer_types or sparse_attention_config; without both full */
} tsr_layer_rule;

/* Names of the norms of a layer, below model.layers.N: of the inputs and outputs of both halves. NULL: none. */
typedef struct tsr_norm_names {
    const char *attention_in, *attention_out, *mlp_in, *mlp_out;
} tsr_norm_names;

/* Names of the weights of an MLP. */
typedef struct tsr_mlp_names {
    const char *gate, *up, *down; /* gate NULL: down(act(up(x))) */
    const char *both;             /* gate, then up, in one weight, if the checkpoint has it; NULL: never */
} tsr_mlp_names;

/* Names of a router and experts below model.layers.N. Experts are MLPs EXPERTS.0, EXPERTS.1 and so on, or two
 * stacks. */
typedef struct tsr_moe_names {
    const char *router, *bias, *experts, *shared, *shared_gate; /* bias: of the choice. NULL: none */
    const char *router_scale, *expert_scale; /* factors of router inputs and of experts' weights. NULL: none */
    const char *table; /* experts of each token, [vocabulary][chosen], in layers that have it. NULL: never */
    const char *dense; /* the MLP of layers without a router; NULL: mlp */
    const tsr_mlp_names *expert, *of_shared;
    const char *stacks[2]; /* gates and ups, and downs, if the checkpoint has them. NULL: never */
    bool alternating; /* stacks are [experts, inputs, outputs] with biases, and gates and ups alternate. Otherwise they
                       * are [experts, outputs, inputs], gates first */
} tsr_moe_names;

typedef struct tsr_family_row {
    const char *type; /* model_type; NULL ends the table */
    unsigned traits;
    tsr_layer_rule layers;
    const tsr_norm_names *norms;
    const tsr_mlp_names *mlp;
    const tsr_moe_names *moe;
    double rope_base, rope_share; /* rope_theta and partial_rotary_factor, if config.json has none. 0: 10000 and 1 */
} tsr_family_row;

/* Weights that a pass takes from another checkpoint of the same model: those of one group of tensors. */
typedef struct tsr_exchange {
    const tsr_side *side;     /* NULL: none. It has all weights of the group, with the same shapes */
    const uint32_t *group_of; /* [tensors of the model's own checkpoint] */
    uint32_t group;
} tsr_exchange;

/* The function of a router's logits: softmax; 1 / (1 + exp(-x)); sqrt(log(1 + exp(x))). */
typedef enum tsr_scoring { TSR_SCORE_SOFTMAX, TSR_SCORE_SIGMOID, TSR_SCORE_ROOT } tsr_scoring;

typedef struct tsr_forward {
    const tsr_side *side;
    const tsr_family_row *family;
    /* Beginning of all names but the head's ("model."), names of the embedding and of the final norm behind it, and the
     * head's name. */
    const char *root, *embedding, *norm, *head;
    unsigned traits;
    size_t layers, hidden, vocabulary;
    size_t streams, width;                                  /* width: elements of a state, [streams][hidden] */
    size_t heads, kv_heads, head_dim;                       /* grouped-query attention */
    size_t full_kv_heads, full_dim;                         /* the same for layers without a window */
    size_t value_dim;                                       /* elements of a head of values; 0: as many as keys have */
    double value_scale;                                     /* usually 1 */
    bool keys_are_values;                                   /* in layers without a window */
    tsr_rope rope, local_rope;                              /* grouped-query attention */
    size_t window;                                          /* SIZE_MAX: none */
    tsr_layer_kind *kinds;                                  /* [layers] */
    bool *has_rope;                                         /* [layers] */
    bool *shares;                                           /* [layers]: keeps the choice of the layer before it */
    double eps, attention_scale, score_cap, logit_cap;      /* a cap of 0: none */
    double embedding_scale, residual_scale, logits_divisor; /* usually 1 */
    double least_step;                                      /* the smallest step of a scan */
    double query_growth, trained;                           /* llama_4_scaling_beta, and the positions without it */
    tsr_gate gate;
    double gate_limit;
    bool tied;
    struct tsr_router {
        tsr_scoring scoring;
        bool paired;     /* groups are ranked by their two best, and weights are always scaled. Otherwise groups are
                          * ranked by their best, and only weights that are not normalized are scaled */
        bool normalized; /* norm_topk_prob */
        size_t chosen, groups, groups_kept;
        double scale;
    } router;
    struct tsr_compression {
        size_t rate[2];          /* tokens of an entry: in layers with an indexer, and in others */
        size_t q_rank;           /* latent of queries */
        size_t out_groups, rank; /* out_groups and rank belong to the first output projection */
        size_t turned;           /* elements of a head that RoPE turns: the last ones */
        size_t iterations;       /* the rounds of Sinkhorn and Knopp's normalization */
        double eps;              /* hyper-connections add it to weights and sums */
    } compression;
    struct tsr_indexer {
        size_t heads, dim;
        size_t groups;      /* attention heads are divided into so many, each with its own choice */
        size_t block, kept; /* positions of a block; number of blocks that a query attends to */
        size_t local;       /* the last blocks up to the query's own, which are always chosen */
        tsr_rope rope;      /* turns the first elements of q and k */
    } indexer;

    /* Set by the caller. */
    tsr_ops *ops; /* borrowed */
    bool served;
    tsr_input_choice inputs;  /* with `served` */
    tsr_exchange exchange;    /* takes effect in linear layers, at the next layer or head */
    tsr_collector *collector; /* receives the inputs of linear layers; NULL: they are not collected. Borrowed */

    struct tsr_ahead *ahead; /* reads weights ahead; NULL: not started */

    tsr_token_choice choice; /* made by the last layer with an indexer */

    /* Totals of the layers run so far. */
    uint64_t bytes_read;           /* bytes of weights read */
    double noise;                  /* expected loss of the last layer's coarsest linear layer, relative to its power */
    tsr_input_coding input_coding; /* coarsest input coding so far */
    tsr_arena arena;
} tsr_forward;

/* Opens a model. `side` must outlive it; its weights may come from tsr_weights_survey. TSR_E_UNSUPPORTED: an unknown
 * family, activation, window or RoPE. TSR_E_FORMAT: config.json lacks a setting. */
tsr_status tsr_forward_open(tsr_forward *forward, const tsr_side *side, tsr_err *err);
void tsr_forward_close(tsr_forward *forward);

/* Writes the families' names, separated by ", ". Returns text. */
const char *tsr_forward_families(char *text, size_t size);

/* Returns the bytes of what a comparison of two models keeps between layers: the states before and after a layer, and
 * the logits of a chunk. */
uint64_t tsr_forward_states_memory(const tsr_forward *forward, size_t tokens);

/* Returns the most bytes of activations of one layer, computed from config.json. Weights are read in bands and are not
 * included, except kv_b_proj and one stacked expert. */
uint64_t tsr_forward_layer_memory(const tsr_forward *forward, size_t tokens, size_t longest);

/* Computes the bytes of all statistics that the pass's collector keeps, and of the products of one layer.
 * TSR_E_NOMEM. */
tsr_status tsr_forward_statistics_memory(const tsr_forward *forward, uint64_t *bytes, tsr_err *err);

/* Returns the number of positions whose logits are computed at a time. */
size_t tsr_forward_chunk(const tsr_forward *forward, size_t positions);

/* Computes the states before the first layer x [count][width], in the ops' memory, where all activations are. */
tsr_status tsr_forward_embed(tsr_forward *forward, const tsr_tokens *tokens, tsr_activation *x, tsr_err *err);

/* Runs layer `layer` in place. `choices` (may be NULL) is [count][router.chosen] on the host: the experts of each
 * token, best first. *routed is true if the layer chooses experts. TSR_E_FORMAT: a tensor is missing. TSR_E_SHAPE: a
 * shape contradicts config.json. TSR_E_CANCELLED. */
tsr_status tsr_forward_layer(tsr_forward *forward, size_t layer, const tsr_tokens *tokens, tsr_activation *x,
                             uint32_t *choices, bool *routed, tsr_err *err);

/* Computes logits [n][vocabulary] of n states, on the host, with the final norm and the head. A tied head is the
 * embedding. */
tsr_status tsr_forward_logits(tsr_forward *forward, const tsr_activation *x, size_t n, double *logits, tsr_err *err);
