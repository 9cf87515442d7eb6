/* Computes attention of a layer: grouped-query, or latent, a few heads at a time. */
#include "verify/forward/forward_parts.h"

#include "common/checked.h"
#include "verify/mla/mla_model.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- grouped-query ---- */

/* Applies the norm, if the checkpoint has one, and RoPE to `n` heads of q or k of every token. */
static tsr_status prepare(const tsr_forward *f, size_t layer, const tsr_tokens *tokens, const char *norm, double *x,
                          size_t n, tsr_err *err)
{
    const size_t d = f->head_dim;
    const bool local = f->has_window[layer] && (f->traits & TSR_LOCAL_ROPE) != 0;
    const tsr_op_turn turn = {
        .rope = local ? &f->local_rope : &f->rope, .tokens = tokens, .x = x, .ld = n * d, .heads = n, .step = d};
    char name[TSR_MAX_NAME];
    const tsr_weight *w;
    snprintf(name, sizeof name, "model.layers.%zu.self_attn.%s.weight", layer, norm);
    TSR_TRY(tsr_forward_find(f, &w, NULL, "%s", name));
    if (w != NULL)
        TSR_TRY(tsr_forward_norm(f, name, x, tokens->count * n, d, x, err));
    TSR_TRY(f->ops->turn(f->ops, &turn, err));
    return tsr_forward_round(f, x, tokens->count * n * d, err);
}

static tsr_status attend(tsr_forward *f, const tsr_op_attend *attend, tsr_err *err)
{
    TSR_TRY(f->ops->attend(f->ops, attend, err));
    return tsr_forward_round(f, attend->out, attend->tokens->count * attend->ld_out, err);
}

tsr_status tsr_forward_attention(tsr_forward *f, size_t layer, const tsr_tokens *tokens, const double *x, tsr_held *out,
                                 tsr_err *err)
{
    static const char *const kNames[] = {"q_proj", "k_proj", "v_proj"};
    const size_t n = tokens->count, d = f->head_dim, heads[] = {f->heads, f->kv_heads, f->kv_heads};
    tsr_held qkv[3] = {{0}}, mixed = {0};
    double *sinks = NULL;
    char name[TSR_MAX_NAME];
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "model.layers.%zu.self_attn.%s", layer, kNames[i]);
        TSR_GOTO(tsr_forward_linear(f, name, x, n, heads[i] * d, f->hidden, &qkv[i], err));
        TSR_GOTO(tsr_forward_round(f, qkv[i].x, qkv[i].n, err));
    }
    TSR_GOTO(prepare(f, layer, tokens, "q_norm", qkv[0].x, f->heads, err));
    TSR_GOTO(prepare(f, layer, tokens, "k_norm", qkv[1].x, f->kv_heads, err));
    TSR_GOTO(tsr_forward_collect_cache(f, layer, "k_cache", qkv[1].x, qkv[1].n, err));
    TSR_GOTO(tsr_forward_collect_cache(f, layer, "v_cache", qkv[2].x, qkv[2].n, err));
    snprintf(name, sizeof name, "model.layers.%zu.self_attn.sinks", layer);
    TSR_GOTO(tsr_forward_vector(f, name, f->heads, (f->traits & TSR_STACKED_EXPERTS) != 0, &sinks, err));
    TSR_GOTO(tsr_hold(f, &mixed, n * f->heads * d, err));
    TSR_GOTO(attend(f,
                    &(tsr_op_attend){.tokens = tokens,
                                     .q = qkv[0].x,
                                     .k = qkv[1].x,
                                     .v = qkv[2].x,
                                     .out = mixed.x,
                                     .ld_q = f->heads * d,
                                     .ld_out = f->heads * d,
                                     .heads = f->heads,
                                     .kv_heads = f->kv_heads,
                                     .dim = d,
                                     .v_dim = d,
                                     .scale = f->attention_scale,
                                     .cap = f->score_cap,
                                     .window = f->has_window[layer] ? f->window : SIZE_MAX,
                                     .sinks = sinks},
                    err));
    snprintf(name, sizeof name, "model.layers.%zu.self_attn.o_proj", layer);
    TSR_GOTO(tsr_forward_linear(f, name, mixed.x, n, f->hidden, f->heads * d, out, err));
    status = tsr_forward_round(f, out->x, out->n, err);
out:
    for (size_t i = 0; i < 3; i++)
        tsr_let_go(f, &qkv[i]);
    tsr_let_go(f, &mixed);
    free(sinks);
    return status;
}

/* ---- latent ---- */

enum { HEADS_AT_A_TIME = 8 };

typedef struct latent {
    tsr_forward *f;
    const tsr_tokens *tokens;
    tsr_mla_model m, exchanged;    /* exchanged: provides kv_b_proj if it is from another checkpoint */
    tsr_held q, kv, latent, mixed; /* [n][heads][nope + rope], [n][rank + rope], [n][rank], [n][heads][v] */
} latent;

/* Computes y [n][rows] = W x, rounded as served. With a gain, its norm is applied. */
static tsr_status project(const latent *l, const tsr_weight *w, size_t rows, size_t cols, const double *x,
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

static tsr_status make_queries(latent *l, const double *x, tsr_err *err)
{
    const tsr_mla_model *const m = &l->m;
    const size_t head = m->nope + m->rope, width = m->heads * head;
    tsr_held a = {0};
    tsr_status status = TSR_OK;
    if (m->q_rank > 0) {
        TSR_GOTO(project(l, m->q_a, m->q_rank, m->hidden, x, m->q_norm, &a, err));
        TSR_GOTO(project(l, m->q, width, m->q_rank, a.x, NULL, &l->q, err));
    } else {
        TSR_GOTO(project(l, m->q, width, m->hidden, x, NULL, &l->q, err));
    }
    const tsr_op_turn turn = {.rope = &m->turn,
                              .tokens = l->tokens,
                              .x = l->q.x,
                              .ld = width,
                              .at = m->nope,
                              .heads = m->heads,
                              .step = head,
                              .adjacent = true};
    TSR_GOTO(l->f->ops->turn(l->f->ops, &turn, err));
    status = tsr_forward_round(l->f, l->q.x, l->q.n, err);
out:
    tsr_let_go(l->f, &a);
    return status;
}

static tsr_status make_latent(latent *l, const double *x, tsr_err *err)
{
    const tsr_mla_model *const m = &l->m;
    const size_t n = l->tokens->count, width = m->rank + m->rope;
    TSR_TRY(project(l, m->kv_a, width, m->hidden, x, NULL, &l->kv, err));
    TSR_TRY(tsr_hold(l->f, &l->latent, n * m->rank, err));
    TSR_TRY(l->f->ops->norm(l->f->ops, l->kv.x, width, n, m->rank, m->kv_norm, m->eps, l->latent.x, m->rank, err));
    TSR_TRY(tsr_forward_round(l->f, l->latent.x, l->latent.n, err));
    const tsr_op_turn turn = {
        .rope = &m->turn, .tokens = l->tokens, .x = l->kv.x, .ld = width, .at = m->rank, .heads = 1, .adjacent = true};
    TSR_TRY(l->f->ops->turn(l->f->ops, &turn, err));
    return tsr_forward_round(l->f, l->kv.x, l->kv.n, err);
}

/* Multiplies one head's rows of `w` [rows][rank] by the latent, into columns [at, at + rows) of y. */
static tsr_status expand(const latent *l, const double *w, size_t rows, double *y, size_t ld_y, size_t at, tsr_err *err)
{
    const tsr_linear_product linear = {.dense = w,
                                       .rows = rows,
                                       .cols = l->m.rank,
                                       .x = l->latent.x,
                                       .ld_x = l->m.rank,
                                       .n = l->tokens->count,
                                       .y = y + at,
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
                                .q = l->q.x + first * head,
                                .k = k.x,
                                .v = v.x,
                                .out = l->mixed.x + first * m->v,
                                .ld_q = m->heads * head,
                                .ld_out = m->heads * m->v,
                                .heads = heads,
                                .kv_heads = heads,
                                .dim = head,
                                .v_dim = m->v,
                                .scale = m->softmax_scale,
                                .window = SIZE_MAX};
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
    snprintf(name, sizeof name, "model.layers.%zu.self_attn.kv_b_proj", layer);
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
    const tsr_weight *w;
    TSR_TRY(tsr_forward_find(l->f, &w, NULL, "model.layers.%zu.self_attn.kv_b_proj.weight", layer));
    const tsr_side *const side = w == NULL ? l->f->side : tsr_forward_side_of(l->f, &w);
    if (side == l->f->side)
        return TSR_OK;
    TSR_TRY(tsr_mla_model_open(&l->exchanged, side, layer, err));
    l->m.w_kc = l->exchanged.w_kc;
    l->m.w_vc = l->exchanged.w_vc;
    return TSR_OK;
}

tsr_status tsr_forward_latent(tsr_forward *f, size_t layer, const tsr_tokens *tokens, const double *x, tsr_held *out,
                              tsr_err *err)
{
    latent l = {.f = f, .tokens = tokens};
    tsr_status status;
    TSR_GOTO(tsr_mla_model_open(&l.m, f->side, layer, err));
    TSR_GOTO(exchange_kv_b(&l, layer, err));
    TSR_GOTO(make_queries(&l, x, err));
    TSR_GOTO(make_latent(&l, x, err));
    TSR_GOTO(collect_latent(&l, layer, err));
    TSR_GOTO(tsr_hold(f, &l.mixed, tokens->count * l.m.heads * l.m.v, err));
    for (size_t h = 0; h < l.m.heads; h += HEADS_AT_A_TIME)
        TSR_GOTO(attend_heads(&l, h, (size_t)tsr_min_u64(HEADS_AT_A_TIME, l.m.heads - h), err));
    TSR_GOTO(tsr_forward_round(f, l.mixed.x, l.mixed.n, err));
    status = project(&l, l.m.o, l.m.hidden, l.m.heads * l.m.v, l.mixed.x, NULL, out, err);
out:
    tsr_let_go(f, &l.q);
    tsr_let_go(f, &l.kv);
    tsr_let_go(f, &l.latent);
    tsr_let_go(f, &l.mixed);
    tsr_mla_model_close(&l.exchanged);
    tsr_mla_model_close(&l.m);
    return status;
}
