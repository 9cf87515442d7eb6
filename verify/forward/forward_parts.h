/* Functions shared by the files of the forward pass, and private to them. */
#pragma once

#include "verify/forward/forward.h"

enum { TSR_MAX_NAME = 256, TSR_MAX_STREAMS = 16 };

/* n activations in the ops' memory. Zero-initialised means none. */
typedef struct tsr_held {
    tsr_activation *x;
    size_t n;
} tsr_held;

/* Hold zeros, or numbers of any value, all of which the caller sets. */
tsr_status tsr_hold(const tsr_forward *forward, tsr_held *held, size_t n, tsr_err *err);
tsr_status tsr_hold_unset(const tsr_forward *forward, tsr_held *held, size_t n, tsr_err *err);
void tsr_let_go(const tsr_forward *forward, tsr_held *held);

/* Read the weights of layers into the page cache while the pass computes, if they are on disk (forward_ahead.c). They
 * cannot fail. _begin: layer `layer` runs on so many tokens. _choose: `choices` [n] are the experts of its tokens.
 * _move: the pass has read more weights. _end: the pass has ended. */
typedef struct tsr_ahead tsr_ahead;
void tsr_ahead_begin(tsr_forward *forward, size_t layer, size_t tokens);
void tsr_ahead_choose(tsr_forward *forward, size_t experts, const uint32_t *choices, size_t n);
void tsr_ahead_move(tsr_forward *forward);
void tsr_ahead_end(tsr_forward *forward);

/* Returns the row of a model_type, or NULL if it is NULL or unknown. */
const tsr_family_row *tsr_forward_family(const char *type);

/* Sets window, kinds and has_rope of a model whose family and number of layers are known. TSR_E_UNSUPPORTED: a layer
 * has a type that its family does not. */
tsr_status tsr_layer_kinds_read(tsr_forward *forward, tsr_err *err);

/* Reads the sizes and RoPE of compressed attention and of hyper-connections, if the family has them. */
tsr_status tsr_forward_read_compression(tsr_forward *forward, tsr_err *err);

/* Sets shares and the indexer of a model whose kinds of layers are known. */
tsr_status tsr_forward_read_indexer(tsr_forward *forward, tsr_err *err);

/* Returns the number of queries for which an indexer computes scores at a time. */
size_t tsr_indexer_step(const tsr_forward *forward, size_t longest);

/* Returns the number of layers that layers_block_type or hybrid_override_pattern lists, or 0. */
size_t tsr_layer_kinds_count(const tsr_forward *forward);

/* Returns the name of the block that a layer has in place of attention: "self_attn", "linear_attn", "mamba",
 * "mixer". */
const char *tsr_forward_module(const tsr_forward *forward, size_t layer);

/* Reads a number of config.json, at most TSR_MAX_SIZE. */
enum { TSR_MAX_SIZE = 1 << 24, TSR_MAX_HEAD = 1024 /* numbers and sizes of heads in a delta net */ };
size_t tsr_forward_size(const tsr_forward *forward, const char *key, size_t otherwise);

/* Returns true if the value of config.json at `key` is this JSON literal. */
bool tsr_forward_is(const tsr_forward *forward, const char *key, const char *literal);

/* Writes the name of a part of a layer: "model.layers.3.mlp.gate" for the part "mlp.gate". Returns name. */
const char *tsr_forward_name(const tsr_forward *forward, char name[TSR_MAX_NAME], size_t layer, const char *part);

/* Finds the weight with this formatted name, or NULL if it is missing. If `err` is not NULL, a missing weight is
 * TSR_E_FORMAT. */
tsr_status tsr_forward_find(const tsr_forward *forward, const tsr_weight **weight, tsr_err *err, const char *format,
                            ...) TSR_PRINTF(4, 5);

/* Returns the checkpoint from which the pass takes a weight of its model, and sets *weight to the entry there. */
const tsr_side *tsr_forward_side_of(const tsr_forward *forward, const tsr_weight **weight);

/* Reads a vector of n elements to the host, from malloc. *values is NULL if it is missing and `needed` is false. */
tsr_status tsr_forward_vector(const tsr_forward *forward, const char *name, size_t n, bool needed, double **values,
                              tsr_err *err);

/* Reads a tensor of any shape with n floating-point elements to the host, from malloc. */
tsr_status tsr_forward_elements(const tsr_forward *forward, const char *name, size_t n, double **values, tsr_err *err);

/* A linear layer with `weight`, or with `dense` [rows][cols] on the host: y [n][rows] from x, rows of x `ld_x`
 * apart. `bias` (on the host) may be NULL. `matrix` is an index in a stack. */
typedef struct tsr_layer_product {
    const tsr_weight *weight;
    uint64_t matrix;
    const char *stack; /* name of the stack that `dense` is matrix `matrix` of */
    size_t matrices;   /* number of matrices of the stack */
    const double *dense, *bias;
    size_t rows, cols;
    const tsr_activation *x;
    size_t ld_x, n;
    size_t first_row, ld_y; /* the rows of the weight, which y [n][ld_y] has from column first_row on; ld_y 0: rows */
    bool part;              /* a part of a product, whose input the caller collects */
} tsr_layer_product;
tsr_status tsr_forward_product(tsr_forward *forward, const tsr_layer_product *product, tsr_held *y, tsr_err *err);

/* Collects x [n][cols] as the input of a module, if the pass has a collector. NULL `x`: no token reached it. */
tsr_status tsr_forward_collect(const tsr_forward *forward, const char *module, const tsr_activation *x, size_t n,
                               size_t cols, tsr_err *err);

/* Collects the range of x [n] as that of keys or values of layer `layer`: `cache` is "k_cache" or "v_cache". */
tsr_status tsr_forward_collect_cache(const tsr_forward *forward, size_t layer, const char *cache,
                                     const tsr_activation *x, size_t n, tsr_err *err);

/* Applies MODULE.weight and, if it exists, MODULE.bias: y [n][rows] from x [n][cols]. */
tsr_status tsr_forward_linear(tsr_forward *forward, const char *module, const tsr_activation *x, size_t n, size_t rows,
                              size_t cols, tsr_held *y, tsr_err *err);

/* Applies the norm of this name to `rows` rows of n; x and y may be equal. */
tsr_status tsr_forward_norm(const tsr_forward *forward, const char *name, const tsr_activation *x, size_t rows,
                            size_t n, tsr_activation *y, tsr_err *err);

/* Rounds x to BF16 if the pass is as served. */
tsr_status tsr_forward_round(const tsr_forward *forward, tsr_activation *x, size_t n, tsr_err *err);

/* Multiplies queries x [count][width] by 1 + llama_4_scaling_beta log(1 + floor(position / trained)), if the family
 * does. */
tsr_status tsr_forward_grow_queries(const tsr_forward *forward, const tsr_tokens *tokens, tsr_activation *x,
                                    size_t width, tsr_err *err);

/* Compute out [count][hidden] over x: attention of layer `layer`, latent attention, a delta net, Kimi's, or Mamba-2. */
tsr_status tsr_forward_attention(tsr_forward *forward, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                                 tsr_held *out, tsr_err *err);
tsr_status tsr_forward_latent(tsr_forward *forward, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                              tsr_held *out, tsr_err *err);
tsr_status tsr_forward_delta_net(tsr_forward *forward, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                                 tsr_held *out, tsr_err *err);
tsr_status tsr_forward_kimi_delta(tsr_forward *forward, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                                  tsr_held *out, tsr_err *err);
tsr_status tsr_forward_mamba(tsr_forward *forward, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                             tsr_held *out, tsr_err *err);

/* Computes out [count][hidden], the MLP or router and experts of a layer over x; choices and routed as in
 * tsr_forward_layer. `stream` is what x is the norm of, for families whose experts have a norm of their own. */
tsr_status tsr_forward_mlp(tsr_forward *forward, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                           const tsr_activation *stream, tsr_held *out, uint32_t *choices, bool *routed, tsr_err *err);

/* Computes attention of a window and of entries of a compressed cache (DeepSeek-V4). */
tsr_status tsr_forward_compressed(tsr_forward *forward, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                                  tsr_held *out, tsr_err *err);

/* A compressor of a layer: MODULE.wkv, MODULE.wgate, MODULE.ape and MODULE.norm make entries of `dim` elements of x
 * [count][hidden], one for each `rate` tokens. */
typedef struct tsr_compressor {
    const char *module; /* its whole name */
    const tsr_tokens *tokens;
    const tsr_activation *x;
    size_t dim, rate;
    bool overlaps;
} tsr_compressor;

/* Computes entries [entries->count][dim], with norm and RoPE. The caller frees *entries. */
tsr_status tsr_forward_compress(tsr_forward *forward, const tsr_compressor *compressor, tsr_tokens *entries,
                                tsr_held *out, tsr_err *err);

/* Weights of a hyper-connection for n tokens, on the host: post [streams][n], mix [streams][streams][n]. */
typedef struct tsr_hyper {
    double *post, *mix; /* from malloc */
} tsr_hyper;

/* Computes y [n][hidden], the input of a half of a layer ("attn" or "ffn") from its streams x [n][width], and the
 * weights for its output. The caller calls tsr_hyper_free, even after an error. */
tsr_status tsr_forward_join_streams(tsr_forward *forward, size_t layer, const char *half, const tsr_activation *x,
                                    size_t n, tsr_activation *y, tsr_hyper *hyper, tsr_err *err);

/* Replaces the streams x by stream k = post[k] out + sum over j of mix[j][k] stream j. */
tsr_status tsr_forward_split_streams(const tsr_forward *forward, const tsr_hyper *hyper, const tsr_activation *out,
                                     size_t n, tsr_activation *x, tsr_err *err);
void tsr_hyper_free(tsr_hyper *hyper);

/* Computes y [n][hidden], the sum of the streams before the final norm. */
tsr_status tsr_forward_join_last(tsr_forward *forward, const tsr_activation *x, size_t n, tsr_activation *y,
                                 tsr_err *err);

/* An indexer's inputs: the layer's x [count][hidden], and what its queries are made from, [count][width]. */
typedef struct tsr_indexer_inputs {
    const tsr_tokens *tokens;
    const tsr_activation *x, *query;
    size_t width;
} tsr_indexer_inputs;

/* Chooses the tokens that a layer attends to. A layer that shares the choice of an earlier one keeps it. *chosen is
 * forward->choice, or NULL if attention is not limited: the layer has no indexer, or no sequence is longer than what
 * it chooses. TSR_E_UNSUPPORTED: the earlier layer was not run on these tokens. */
tsr_status tsr_forward_choose_tokens(tsr_forward *forward, size_t layer, const tsr_indexer_inputs *inputs,
                                     const tsr_token_choice **chosen, tsr_err *err);

/* Applies a gate and rounds as served. */
tsr_status tsr_forward_gate(const tsr_forward *forward, const tsr_op_gate *gate, tsr_err *err);

/* Returns true if the experts of a layer are stacks. */
bool tsr_forward_has_stacks(const tsr_forward *forward, size_t layer);

/* Computes out [n][hidden] of expert e of `n_experts` in stacks. */
tsr_status tsr_forward_stacked(tsr_forward *forward, size_t layer, size_t n_experts, size_t e, const tsr_activation *x,
                               size_t n, tsr_held *out, tsr_err *err);

/* Chooses the experts of each of n tokens, unless `chosen` says that they are, and their weights, from the router's
 * logits [n][experts], which become scores. choices and weights are [n][chosen]. All arrays are on the host. `bias`
 * [experts] may be NULL. */
tsr_status tsr_forward_route(const tsr_forward *forward, const char *router, size_t experts, const double *bias,
                             double *logits, size_t n, bool chosen, uint32_t *choices, double *weights, tsr_err *err);

/* Returns the expected quantization noise of a weight and its inputs, as a share of the output's power. */
double tsr_noise_of(const tsr_weight *weight, const tsr_input_coding *inputs);
