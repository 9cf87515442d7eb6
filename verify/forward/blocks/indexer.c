/* Computes the queries, keys and weights of an indexer, and chooses tokens by its scores. */
#include "verify/forward/forward_parts.h"

#include "common/checked.h"
#include "verify/mla/index_query.h"

#include <stdio.h>
#include <stdlib.h>

enum { SCORES_AT_A_TIME = 1 << 20 /* a GPU has as many for each head */ };

typedef struct indexing {
    tsr_forward *f;
    size_t layer;
    const tsr_indexer_inputs *in;
    tsr_held q, k, weights; /* [n][heads][dim], [keys->count][dim], [n][heads] */
    const tsr_tokens *keys; /* the tokens, or the entries of each sequence, of `rate` tokens each */
    size_t rate;
    tsr_tokens entries;
} indexing;

/* Writes the name of a part of the layer's attention. Returns name. */
static const char *name_of(const indexing *x, char name[TSR_MAX_NAME], const char *part, const char *leaf)
{
    char local[TSR_MAX_NAME / 2];
    snprintf(local, sizeof local, "%s.%s%s", tsr_forward_module(x->f, x->layer), part, leaf);
    return tsr_forward_name(x->f, name, x->layer, local);
}

/* Computes y [n][rows] = PART of [n][cols]. */
static tsr_status project(const indexing *x, const char *part, const tsr_activation *in, size_t cols, size_t rows,
                          tsr_held *y, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    return tsr_forward_linear(x->f, name_of(x, name, part, ""), in, x->in->tokens->count, rows, cols, y, err);
}

/* Applies RoPE to the first elements of each head, or of DeepSeek-V4 the last, and rounds as served. */
static tsr_status turn(const indexing *x, const tsr_held *y, size_t heads, tsr_err *err)
{
    const tsr_forward *const f = x->f;
    const size_t dim = f->indexer.dim;
    const bool last = (f->traits & TSR_STREAMS) != 0;
    const tsr_op_turn turn = {.rope = &f->indexer.rope,
                              .tokens = x->in->tokens,
                              .x = y->x,
                              .ld = heads * dim,
                              .at = last ? dim - 2 * f->indexer.rope.pairs : 0,
                              .heads = heads,
                              .step = dim,
                              .adjacent = last || (f->traits & TSR_ADJACENT_ROPE) != 0};
    TSR_TRY(f->ops->turn(f->ops, &turn, err));
    return tsr_forward_round(f, y->x, y->n, err);
}

/* Applies a LayerNorm with gain and bias to rows of n. */
static tsr_status norm_layer(const indexing *x, const char *part, tsr_held *y, size_t n, tsr_err *err)
{
    const tsr_forward *const f = x->f;
    const size_t rows = y->n / n;
    char name[TSR_MAX_NAME];
    double *gain = NULL, *bias = NULL;
    tsr_held sum = {0};
    tsr_status status;
    TSR_GOTO(tsr_forward_vector(f, name_of(x, name, part, ".weight"), n, true, &gain, err));
    TSR_GOTO(tsr_forward_vector(f, name_of(x, name, part, ".bias"), n, true, &bias, err));
    TSR_GOTO(f->ops->center(f->ops, y->x, rows, n, y->x, err));
    TSR_GOTO(f->ops->norm(f->ops, y->x, n, rows, n, gain, TSR_INDEX_EPS, y->x, n, err));
    TSR_GOTO(tsr_hold(f, &sum, y->n, err));
    TSR_GOTO(f->ops->fill(f->ops, sum.x, rows, n, bias, err));
    TSR_GOTO(f->ops->add(f->ops, y->x, sum.x, rows, n, NULL, NULL, err));
    status = tsr_forward_round(f, y->x, y->n, err);
out:
    tsr_let_go(f, &sum);
    free(gain);
    free(bias);
    return status;
}

/* Computes the inputs of MiniMax-M3's scores. Releases and transformers write other names. */
static tsr_status make_grouped(indexing *x, tsr_err *err)
{
    static const char *const kParts[2][4] = {{"index_q_proj", "index_k_proj", "index_q_norm", "index_k_norm"},
                                             {"indexer.q_proj", "indexer.k_proj", "indexer.q_norm", "indexer.k_norm"}};
    const tsr_forward *const f = x->f;
    const size_t heads = f->indexer.heads, dim = f->indexer.dim;
    char name[TSR_MAX_NAME];
    const tsr_weight *w;
    TSR_TRY(tsr_forward_find(f, &w, NULL, "%s", name_of(x, name, kParts[0][0], ".weight")));
    const char *const *const parts = kParts[w == NULL];
    for (size_t i = 0; i < 2; i++) {
        tsr_held *const y = i == 0 ? &x->q : &x->k;
        const size_t n = i == 0 ? heads : 1;
        TSR_TRY(project(x, parts[i], x->in->x, f->hidden, n * dim, y, err));
        TSR_TRY(tsr_forward_round(f, y->x, y->n, err));
        TSR_TRY(tsr_forward_norm(f, name_of(x, name, parts[2 + i], ".weight"), y->x, y->n / dim, dim, y->x, err));
        TSR_TRY(turn(x, y, n, err));
    }
    return TSR_OK;
}

/* Computes the inputs of DeepSeek's scores. Their constant factors are left out: they are positive. */
static tsr_status make_latent(indexing *x, tsr_err *err)
{
    const tsr_forward *const f = x->f;
    const size_t heads = f->indexer.heads, dim = f->indexer.dim;
    TSR_TRY(project(x, "indexer.wq_b", x->in->query, x->in->width, heads * dim, &x->q, err));
    TSR_TRY(tsr_forward_round(f, x->q.x, x->q.n, err));
    TSR_TRY(project(x, "indexer.wk", x->in->x, f->hidden, dim, &x->k, err));
    TSR_TRY(tsr_forward_round(f, x->k.x, x->k.n, err));
    TSR_TRY(norm_layer(x, "indexer.k_norm", &x->k, dim, err));
    TSR_TRY(turn(x, &x->q, heads, err));
    TSR_TRY(turn(x, &x->k, 1, err));
    return project(x, "indexer.weights_proj", x->in->x, f->hidden, heads, &x->weights, err);
}

/* Computes the inputs of DeepSeek-V4's scores. Keys are entries of a compressor of the indexer's own. */
static tsr_status make_compressed(indexing *x, tsr_err *err)
{
    tsr_forward *const f = x->f;
    const size_t heads = f->indexer.heads, dim = f->indexer.dim;
    char name[TSR_MAX_NAME];
    TSR_TRY(project(x, "indexer.wq_b", x->in->query, x->in->width, heads * dim, &x->q, err));
    TSR_TRY(tsr_forward_round(f, x->q.x, x->q.n, err));
    TSR_TRY(turn(x, &x->q, heads, err));
    x->rate = f->compression.rate[0];
    x->keys = &x->entries;
    const tsr_compressor keys = {
        name_of(x, name, "indexer.compressor", ""), x->in->tokens, x->in->x, dim, x->rate, true};
    TSR_TRY(tsr_forward_compress(f, &keys, &x->entries, &x->k, err));
    return project(x, "indexer.weights_proj", x->in->x, f->hidden, heads, &x->weights, err);
}

/* Chooses for queries [position, position + n) of sequence s. */
static tsr_status choose_queries(const indexing *x, size_t s, size_t position, size_t n, double *host, tsr_err *err)
{
    const size_t begin = x->in->tokens->first[s];
    tsr_forward *const f = x->f;
    const struct tsr_indexer *const i = &f->indexer;
    const size_t keys = (position + n) / x->rate, size = i->groups * n * keys;
    tsr_held scores = {0};
    TSR_TRY(tsr_hold(f, &scores, size, err));
    const tsr_op_index args = {.q = x->q.x,
                               .k = x->k.x,
                               .weights = x->weights.x,
                               .heads = i->heads,
                               .dim = i->dim,
                               .begin = x->keys->first[s],
                               .first = begin + position,
                               .position = position,
                               .queries = n,
                               .keys = keys,
                               .rate = x->rate,
                               .scores = scores.x};
    const tsr_token_scores of_tokens = {.scores = host,
                                        .queries = n,
                                        .keys = keys,
                                        .token = begin + position,
                                        .position = position,
                                        .block = i->block,
                                        .kept = i->kept,
                                        .local = i->local};
    tsr_status status = f->ops->index(f->ops, &args, err);
    if (status == TSR_OK)
        status = f->ops->get(f->ops, host, scores.x, size, err);
    if (status == TSR_OK)
        status = tsr_token_choice_add(&f->choice, &of_tokens, f->ops->threads, f->ops->cancel, err);
    tsr_let_go(f, &scores);
    return status;
}

static tsr_status choose(const indexing *x, tsr_err *err)
{
    tsr_forward *const f = x->f;
    const tsr_tokens *const tokens = x->in->tokens;
    const size_t step = tsr_indexer_step(f, tokens->longest), all = f->indexer.kept * f->indexer.block * x->rate;
    double *const host = malloc((f->indexer.groups * step * tokens->longest + 1) * sizeof *host);
    tsr_status status = host == NULL ? tsr_out_of_memory(err, "for the choice of tokens") : TSR_OK;
    for (size_t s = 0; status == TSR_OK && s < tokens->sequences; s++) {
        const size_t begin = tokens->first[s], length = tokens->first[s + 1] - begin;
        for (size_t i = 0; i < tsr_min_u64(all, length); i++)
            tsr_token_choice_add_all(&f->choice, begin + i, i);
        for (size_t i = all; status == TSR_OK && i < length; i += step)
            status = choose_queries(x, s, i, (size_t)tsr_min_u64(step, length - i), host, err);
    }
    free(host);
    return status;
}

size_t tsr_indexer_step(const tsr_forward *f, size_t longest)
{
    return (size_t)tsr_min_u64(tsr_max_u64(SCORES_AT_A_TIME / (f->indexer.groups * longest + 1), 1), longest);
}

static tsr_status run_indexer(tsr_forward *f, size_t layer, const tsr_indexer_inputs *in, bool limited, tsr_err *err)
{
    indexing x = {.f = f, .layer = layer, .in = in, .keys = in->tokens, .rate = 1};
    tsr_status status;
    tsr_token_choice_free(&f->choice);
    TSR_GOTO((f->traits & TSR_LATENT) != 0    ? make_latent(&x, err)
             : (f->traits & TSR_STREAMS) != 0 ? make_compressed(&x, err)
                                              : make_grouped(&x, err));
    if (limited) {
        TSR_GOTO(tsr_token_choice_make(&f->choice, f->indexer.groups, in->tokens, x.rate, err));
        status = choose(&x, err);
    }
out:
    tsr_let_go(f, &x.q);
    tsr_let_go(f, &x.k);
    tsr_let_go(f, &x.weights);
    tsr_tokens_free(&x.entries);
    return status;
}

tsr_status tsr_forward_choose_tokens(tsr_forward *f, size_t layer, const tsr_indexer_inputs *in,
                                     const tsr_token_choice **chosen, tsr_err *err)
{
    const size_t rate = (f->traits & TSR_STREAMS) != 0 ? f->compression.rate[0] : 1;
    const bool limited = in->tokens->longest / rate > f->indexer.kept * f->indexer.block;
    *chosen = NULL;
    if (f->kinds[layer] != TSR_LAYER_INDEXED)
        return TSR_OK;
    if (!f->shares[layer] && (limited || f->collector != NULL))
        TSR_TRY(run_indexer(f, layer, in, limited, err));
    if (limited && f->choice.count != in->tokens->count)
        return tsr_fail(
            err, TSR_E_UNSUPPORTED,
            "%s: layer %zu attends to the tokens that an earlier layer chooses, which was not run before it",
            f->side->checkpoint->path, layer);
    *chosen = limited ? &f->choice : NULL;
    return TSR_OK;
}
