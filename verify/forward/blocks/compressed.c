/* Computes compressed attention (DeepSeek-V4): of a window of tokens, and of entries that stand for several tokens
 * each.
 *
 * All heads share one key, which is its value, too. RoPE turns the last elements of queries and keys, and turns those
 * of the output back. The output projection has two steps, the first of which is divided into groups of heads. */
#include "verify/forward/forward_parts.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct compressed {
    tsr_forward *f;
    size_t layer;
    const tsr_tokens *tokens;
    const tsr_activation *x;
    tsr_held query, q, kv, entry, mixed; /* [n][q_rank], [n][heads][dim], [n][dim], [entries][dim], [n][heads][dim] */
    tsr_tokens entries;
} compressed;

static const char *name_of(const compressed *c, char name[TSR_MAX_NAME], const char *part)
{
    char local[TSR_MAX_NAME / 2];
    snprintf(local, sizeof local, "attn.%s", part);
    return tsr_forward_name(c->f, name, c->layer, local);
}

/* Computes y [n][rows] = PART x for x [n][cols], rounded as served. */
static tsr_status project(const compressed *c, const char *part, const tsr_activation *x, size_t rows, size_t cols,
                          tsr_held *y, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    TSR_TRY(tsr_forward_linear(c->f, name_of(c, name, part), x, c->tokens->count, rows, cols, y, err));
    return tsr_forward_round(c->f, y->x, y->n, err);
}

/* Divides the rows of x [rows][n] by their RMS. */
static tsr_status divide_by_rms(const tsr_forward *f, tsr_held *x, size_t n, tsr_err *err)
{
    TSR_TRY(f->ops->norm(f->ops, x->x, n, x->n / n, n, NULL, f->eps, x->x, n, err));
    return tsr_forward_round(f, x->x, x->n, err);
}

/* Applies RoPE to the last elements of `heads` heads of each token. */
static tsr_status turn(const compressed *c, const tsr_held *x, size_t heads, bool back, tsr_err *err)
{
    const tsr_forward *const f = c->f;
    const tsr_op_turn args = {.rope = f->kinds[c->layer] == TSR_LAYER_WINDOW ? &f->local_rope : &f->rope,
                              .tokens = c->tokens,
                              .x = x->x,
                              .ld = heads * f->head_dim,
                              .at = f->head_dim - f->compression.turned,
                              .heads = heads,
                              .step = f->head_dim,
                              .adjacent = true,
                              .back = back};
    TSR_TRY(f->ops->turn(f->ops, &args, err));
    return tsr_forward_round(f, x->x, x->n, err);
}

static tsr_status make_queries(compressed *c, tsr_err *err)
{
    const tsr_forward *const f = c->f;
    const size_t rank = f->compression.q_rank, n = c->tokens->count;
    char name[TSR_MAX_NAME];
    TSR_TRY(project(c, "wq_a", c->x, rank, f->hidden, &c->query, err));
    TSR_TRY(tsr_forward_norm(f, name_of(c, name, "q_norm.weight"), c->query.x, n, rank, c->query.x, err));
    TSR_TRY(project(c, "wq_b", c->query.x, f->heads * f->head_dim, rank, &c->q, err));
    TSR_TRY(divide_by_rms(f, &c->q, f->head_dim, err));
    return turn(c, &c->q, f->heads, false, err);
}

static tsr_status make_keys(compressed *c, tsr_err *err)
{
    const tsr_forward *const f = c->f;
    char name[TSR_MAX_NAME];
    TSR_TRY(project(c, "wkv", c->x, f->head_dim, f->hidden, &c->kv, err));
    TSR_TRY(
        tsr_forward_norm(f, name_of(c, name, "kv_norm.weight"), c->kv.x, c->tokens->count, f->head_dim, c->kv.x, err));
    return turn(c, &c->kv, 1, false, err);
}

static tsr_status attend(compressed *c, const double *sinks, size_t rate, const tsr_token_choice *chosen, tsr_err *err)
{
    const tsr_forward *const f = c->f;
    const bool has_entries = c->entries.count > 0;
    const tsr_op_attend args = {.tokens = c->tokens,
                                .q = c->q.x,
                                .k = c->kv.x,
                                .v = c->kv.x,
                                .out = c->mixed.x,
                                .ld_q = f->heads * f->head_dim,
                                .ld_out = f->heads * f->head_dim,
                                .heads = f->heads,
                                .kv_heads = 1,
                                .dim = f->head_dim,
                                .v_dim = f->head_dim,
                                .scale = f->attention_scale,
                                .window = f->window,
                                .sinks = sinks,
                                .entries = {has_entries ? c->entry.x : NULL, &c->entries, rate},
                                .chosen = has_entries ? chosen : NULL};
    TSR_TRY(f->ops->attend(f->ops, &args, err));
    TSR_TRY(tsr_forward_round(f, c->mixed.x, c->mixed.n, err));
    return turn(c, &c->mixed, f->heads, true, err);
}

/* Applies wo_a, whose rows are divided among groups of heads, and wo_b. */
static tsr_status project_out(const compressed *c, tsr_held *out, tsr_err *err)
{
    tsr_forward *const f = c->f;
    const size_t groups = f->compression.out_groups, rank = f->compression.rank, n = c->tokens->count;
    const size_t cols = f->heads / groups * f->head_dim;
    char name[TSR_MAX_NAME];
    const tsr_weight *w;
    tsr_held low = {0};
    tsr_status status = TSR_OK;
    name_of(c, name, "wo_a");
    TSR_GOTO(tsr_forward_collect(f, name, c->mixed.x, n * groups, cols, err));
    TSR_GOTO(tsr_forward_find(f, &w, err, "%s.weight", name));
    TSR_GOTO(tsr_linear_expect(f->side->checkpoint, w, groups * rank, cols, err));
    TSR_GOTO(tsr_hold(f, &low, n * groups * rank, err));
    for (size_t g = 0; g < groups; g++) {
        const tsr_layer_product p = {.weight = w,
                                     .rows = rank,
                                     .cols = cols,
                                     .x = tsr_at(f->ops, c->mixed.x, g * cols),
                                     .ld_x = groups * cols,
                                     .n = n,
                                     .first_row = g * rank,
                                     .ld_y = groups * rank,
                                     .part = true};
        TSR_GOTO(tsr_forward_product(f, &p, &low, err));
    }
    TSR_GOTO(tsr_forward_round(f, low.x, low.n, err));
    status = project(c, "wo_b", low.x, f->hidden, groups * rank, out, err);
out:
    tsr_let_go(f, &low);
    return status;
}

tsr_status tsr_forward_compressed(tsr_forward *f, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                                  tsr_held *out, tsr_err *err)
{
    const bool indexed = f->kinds[layer] == TSR_LAYER_INDEXED;
    const size_t rate = f->compression.rate[indexed ? 0 : 1];
    const tsr_token_choice *chosen = NULL;
    compressed c = {.f = f, .layer = layer, .tokens = tokens, .x = x};
    tsr_held *const held[] = {&c.query, &c.q, &c.kv, &c.entry, &c.mixed};
    char name[TSR_MAX_NAME];
    double *sinks = NULL;
    tsr_status status = TSR_OK;
    TSR_GOTO(make_queries(&c, err));
    TSR_GOTO(make_keys(&c, err));
    const tsr_indexer_inputs to_indexer = {tokens, x, c.query.x, f->compression.q_rank};
    TSR_GOTO(tsr_forward_choose_tokens(f, layer, &to_indexer, &chosen, err));
    if (f->kinds[layer] != TSR_LAYER_WINDOW) {
        const tsr_compressor own = {name_of(&c, name, "compressor"), tokens, x, f->head_dim, rate, indexed};
        TSR_GOTO(tsr_forward_compress(f, &own, &c.entries, &c.entry, err));
    }
    TSR_GOTO(tsr_forward_collect_cache(f, layer, "k_cache", c.kv.x, c.kv.n, err));
    TSR_GOTO(tsr_forward_vector(f, name_of(&c, name, "attn_sink"), f->heads, true, &sinks, err));
    TSR_GOTO(tsr_hold_unset(f, &c.mixed, tokens->count * f->heads * f->head_dim, err));
    TSR_GOTO(attend(&c, sinks, rate, chosen, err));
    status = project_out(&c, out, err);
out:
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        tsr_let_go(f, held[i]);
    tsr_tokens_free(&c.entries);
    free(sinks);
    return status;
}
