/* Computes latent attention of a layer, a few heads at a time. */
#include "verify/forward/forward_parts.h"

#include "common/checked.h"
#include "verify/mla/mla_model.h"

enum { HEADS_AT_A_TIME = 8 };

typedef struct latent {
    tsr_forward *f;
    const tsr_tokens *tokens;
    bool has_rope;
    tsr_mla_model m, exchanged;    /* exchanged: provides kv_b_proj if it is from another checkpoint */
    tsr_held query;                /* [n][q_rank]: the latent of queries, if they have one */
    tsr_held q, kv, latent, mixed; /* [n][heads][nope + rope], [n][rank + rope], [n][rank], [n][heads][v] */
    const tsr_token_choice *chosen;
} latent;

/* Computes y [n][rows] = W x, rounded as served. With a gain, its norm is applied. */
static tsr_status project(const latent *l, const tsr_weight *w, size_t rows, size_t cols, const tsr_activation *x,
                          const double *gain, tsr_held *y, tsr_err *err)
{
    tsr_forward *const f = l->f;
    const size_t n = l->tokens->count;
    const tsr_layer_product p = {.weight = w, .rows = rows, .cols = cols, .x = x, .ld_x = cols, .n = n};
    TSR_TRY(tsr_forward_product(f, &p, y, err));
    TSR_TRY(tsr_forward_round(f, y->x, y->n, err));
    if (gain == NULL)
        return TSR_OK;
    TSR_TRY(f->ops->norm(f->ops, y->x, rows, n, rows, gain, l->m.eps, y->x, rows, err));
    return tsr_forward_round(f, y->x, y->n, err);
}

static tsr_status make_queries(latent *l, const tsr_activation *x, tsr_err *err)
{
    const tsr_mla_model *const m = &l->m;
    const size_t head = m->nope + m->rope, width = m->heads * head;
    if (m->q_rank > 0) {
        TSR_TRY(project(l, m->q_a, m->q_rank, m->hidden, x, m->q_norm, &l->query, err));
        TSR_TRY(project(l, m->q, width, m->q_rank, l->query.x, NULL, &l->q, err));
    } else {
        TSR_TRY(project(l, m->q, width, m->hidden, x, NULL, &l->q, err));
    }
    const tsr_op_turn turn = {.rope = &m->turn,
                              .tokens = l->tokens,
                              .x = l->q.x,
                              .ld = width,
                              .at = m->nope,
                              .heads = m->heads,
                              .step = head,
                              .adjacent = true};
    if (l->has_rope)
        TSR_TRY(l->f->ops->turn(l->f->ops, &turn, err));
    TSR_TRY(tsr_forward_round(l->f, l->q.x, l->q.n, err));
    return tsr_forward_grow_queries(l->f, l->tokens, l->q.x, width, err);
}

static tsr_status make_latent(latent *l, const tsr_activation *x, tsr_err *err)
{
    const tsr_mla_model *const m = &l->m;
    const size_t n = l->tokens->count, width = m->rank + m->rope;
    TSR_TRY(project(l, m->kv_a, width, m->hidden, x, NULL, &l->kv, err));
    TSR_TRY(tsr_hold(l->f, &l->latent, n * m->rank, err));
    TSR_TRY(l->f->ops->norm(l->f->ops, l->kv.x, width, n, m->rank, m->kv_norm, m->eps, l->latent.x, m->rank, err));
    TSR_TRY(tsr_forward_round(l->f, l->latent.x, l->latent.n, err));
    const tsr_op_turn turn = {
        .rope = &m->turn, .tokens = l->tokens, .x = l->kv.x, .ld = width, .at = m->rank, .heads = 1, .adjacent = true};
    if (l->has_rope)
        TSR_TRY(l->f->ops->turn(l->f->ops, &turn, err));
    return tsr_forward_round(l->f, l->kv.x, l->kv.n, err);
}

/* Multiplies one head's rows of `w` [rows][rank] by the latent, into columns [at, at + rows) of y. */
static tsr_status expand(const latent *l, const double *w, size_t rows, tsr_activation *y, size_t ld_y, size_t at,
                         tsr_err *err)
{
    const tsr_op_linear linear = {.dense = w,
                                  .rows = rows,
                                  .cols = l->m.rank,
                                  .x = l->latent.x,
                                  .ld_x = l->m.rank,
                                  .n = l->tokens->count,
                                  .y = tsr_at(l->f->ops, y, at),
                                  .ld_y = ld_y};
    return tsr_ops_linear(l->f->ops, &linear, err);
}

static tsr_status attend_heads(latent *l, size_t first, size_t heads, tsr_err *err)
{
    const tsr_mla_model *const m = &l->m;
    const tsr_ops *const ops = l->f->ops;
    const size_t n = l->tokens->count, head = m->nope + m->rope;
    tsr_held k = {0}, v = {0};
    tsr_status status = TSR_OK;
    TSR_GOTO(tsr_hold(l->f, &k, n * heads * head, err));
    TSR_GOTO(tsr_hold(l->f, &v, n * heads * m->v, err));
    for (size_t h = 0; h < heads; h++) {
        TSR_GOTO(expand(l, m->w_kc + (first + h) * m->nope * m->rank, m->nope, k.x, heads * head, h * head, err));
        TSR_GOTO(ops->place(l->f->ops, k.x, heads * head, h * head + m->nope, l->kv.x, m->rank + m->rope, m->rank, n,
                            m->rope, err));
        TSR_GOTO(expand(l, m->w_vc + (first + h) * m->v * m->rank, m->v, v.x, heads * m->v, h * m->v, err));
    }
    TSR_GOTO(tsr_forward_round(l->f, k.x, k.n, err));
    TSR_GOTO(tsr_forward_round(l->f, v.x, v.n, err));
    const tsr_op_attend args = {.tokens = l->tokens,
                                .q = tsr_at(ops, l->q.x, first * head),
                                .k = k.x,
                                .v = v.x,
                                .out = tsr_at(ops, l->mixed.x, first * m->v),
                                .ld_q = m->heads * head,
                                .ld_out = m->heads * m->v,
                                .heads = heads,
                                .kv_heads = heads,
                                .dim = head,
                                .v_dim = m->v,
                                .common = m->rope,
                                .scale = m->softmax_scale,
                                .window = SIZE_MAX,
                                .chosen = l->chosen};
    status = ops->attend(l->f->ops, &args, err);
out:
    tsr_let_go(l->f, &k);
    tsr_let_go(l->f, &v);
    return status;
}

/* Collects the input of kv_b_proj, which is not multiplied as a whole, and what the cache stores: the latent with the
 * keys of RoPE. */
static tsr_status collect_latent(const latent *l, size_t layer, tsr_err *err)
{
    const size_t n = l->tokens->count;
    char name[TSR_MAX_NAME];
    tsr_held keys = {0};
    tsr_status status = TSR_OK;
    if (l->f->collector == NULL)
        return TSR_OK;
    tsr_forward_name(l->f, name, layer, "self_attn.kv_b_proj");
    TSR_TRY(tsr_forward_collect(l->f, name, l->latent.x, n, l->m.rank, err));
    TSR_TRY(tsr_hold(l->f, &keys, n * l->m.rope, err));
    TSR_GOTO(l->f->ops->place(l->f->ops, keys.x, l->m.rope, 0, l->kv.x, l->m.rank + l->m.rope, l->m.rank, n, l->m.rope,
                              err));
    TSR_GOTO(tsr_forward_collect_cache(l->f, layer, "k_cache", l->latent.x, l->latent.n, err));
    TSR_GOTO(tsr_forward_collect_cache(l->f, layer, "k_cache", keys.x, keys.n, err));
    status = tsr_forward_collect_cache(l->f, layer, "v_cache", l->latent.x, l->latent.n, err);
out:
    tsr_let_go(l->f, &keys);
    return status;
}

/* Takes kv_b_proj from another checkpoint if the pass exchanges it. */
static tsr_status exchange_kv_b(latent *l, size_t layer, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    const tsr_weight *w;
    TSR_TRY(tsr_forward_find(l->f, &w, NULL, "%s", tsr_forward_name(l->f, name, layer, "self_attn.kv_b_proj.weight")));
    const tsr_side *const side = w == NULL ? l->f->side : tsr_forward_side_of(l->f, &w);
    if (side == l->f->side)
        return TSR_OK;
    TSR_TRY(tsr_mla_model_open(&l->exchanged, side, l->f->root, layer, err));
    l->m.w_kc = l->exchanged.w_kc;
    l->m.w_vc = l->exchanged.w_vc;
    return TSR_OK;
}

tsr_status tsr_forward_latent(tsr_forward *f, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                              tsr_held *out, tsr_err *err)
{
    latent l = {.f = f, .tokens = tokens, .has_rope = f->has_rope[layer]};
    tsr_status status;
    TSR_GOTO(tsr_mla_model_open(&l.m, f->side, f->root, layer, err));
    TSR_GOTO(exchange_kv_b(&l, layer, err));
    TSR_GOTO(make_queries(&l, x, err));
    const tsr_indexer_inputs to_indexer = {tokens, x, l.query.x, l.m.q_rank};
    TSR_GOTO(tsr_forward_choose_tokens(f, layer, &to_indexer, &l.chosen, err));
    tsr_let_go(f, &l.query);
    TSR_GOTO(make_latent(&l, x, err));
    TSR_GOTO(collect_latent(&l, layer, err));
    TSR_GOTO(tsr_hold(f, &l.mixed, tokens->count * l.m.heads * l.m.v, err));
    for (size_t h = 0; h < l.m.heads; h += HEADS_AT_A_TIME)
        TSR_GOTO(attend_heads(&l, h, (size_t)tsr_min_u64(HEADS_AT_A_TIME, l.m.heads - h), err));
    TSR_GOTO(tsr_forward_round(f, l.mixed.x, l.mixed.n, err));
    status = project(&l, l.m.o, l.m.hidden, l.m.heads * l.m.v, l.mixed.x, NULL, out, err);
out:
    tsr_let_go(f, &l.query);
    tsr_let_go(f, &l.q);
    tsr_let_go(f, &l.kv);
    tsr_let_go(f, &l.latent);
    tsr_let_go(f, &l.mixed);
    tsr_mla_model_close(&l.exchanged);
    tsr_mla_model_close(&l.m);
    return status;
}
