/* Computes grouped-query attention of a layer. */
#include "verify/forward/forward_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct grouped {
    tsr_forward *f;
    size_t layer;
    const tsr_tokens *tokens;
    size_t kv_heads, dim, v_dim;
    tsr_held q, k, v, gate; /* [n][heads][dim], [n][kv_heads][dim], [n][kv_heads][v_dim], [n][heads][dim] */
} grouped;

/* Writes the name of a part of the block. Returns name. */
static const char *name_of(const grouped *g, char name[TSR_MAX_NAME], const char *part)
{
    char local[TSR_MAX_NAME / 2];
    snprintf(local, sizeof local, "%s.%s", tsr_forward_module(g->f, g->layer), part);
    return tsr_forward_name(g->f, name, g->layer, local);
}

/* Applies the norm, if the checkpoint has one, to `n` heads of q or k of every token. */
static tsr_status norm_heads(const grouped *g, const char *norm, tsr_activation *x, size_t n, tsr_err *err)
{
    const tsr_forward *const f = g->f;
    const bool wide = (f->traits & TSR_WIDE_NORMS) != 0;
    char part[TSR_MAX_NAME / 2], name[TSR_MAX_NAME];
    const tsr_weight *w;
    snprintf(part, sizeof part, "%s.weight", norm);
    TSR_TRY(tsr_forward_find(f, &w, NULL, "%s", name_of(g, name, part)));
    if (w == NULL && (f->traits & (TSR_WIDE_NORMS | TSR_LATE_NORMS)) == 0)
        return TSR_OK;
    return tsr_forward_norm(f, name, x, g->tokens->count * (wide ? 1 : n), g->dim * (wide ? n : 1), x, err);
}

/* Applies RoPE to `n` heads of q or k of every token, if the layer has it. */
static tsr_status turn(const grouped *g, tsr_activation *x, size_t n, tsr_err *err)
{
    const tsr_forward *const f = g->f;
    const bool local = f->kinds[g->layer] == TSR_LAYER_WINDOW && (f->traits & (TSR_LOCAL_ROPE | TSR_LOCAL_PLAIN)) != 0;
    const tsr_op_turn turn = {.rope = local ? &f->local_rope : &f->rope,
                              .tokens = g->tokens,
                              .x = x,
                              .ld = n * g->dim,
                              .heads = n,
                              .step = g->dim,
                              .adjacent = (f->traits & TSR_ADJACENT_ROPE) != 0};
    if (!f->has_rope[g->layer])
        return TSR_OK;
    TSR_TRY(f->ops->turn(f->ops, &turn, err));
    return tsr_forward_round(f, x, g->tokens->count * n * g->dim, err);
}

static tsr_status prepare(const grouped *g, tsr_activation *x, size_t n, bool is_key, tsr_err *err)
{
    if ((g->f->traits & TSR_LATE_NORMS) == 0)
        TSR_TRY(norm_heads(g, is_key ? "k_norm" : "q_norm", x, n, err));
    TSR_TRY(turn(g, x, n, err));
    return (g->f->traits & TSR_LATE_NORMS) == 0
               ? TSR_OK
               : norm_heads(g, is_key ? "key_layernorm" : "query_layernorm", x, n, err);
}

/* Computes y [n][width] = PART x of a layer. */
static tsr_status project_to(const grouped *g, const char *part, const tsr_activation *x, size_t width, tsr_held *y,
                             tsr_err *err)
{
    tsr_forward *const f = g->f;
    char name[TSR_MAX_NAME];
    TSR_TRY(tsr_forward_linear(f, name_of(g, name, part), x, g->tokens->count, width, f->hidden, y, err));
    return tsr_forward_round(f, y->x, y->n, err);
}

/* Copies columns [from, from + n) of x [rows][ld] to y [rows][n]. */
static tsr_status cut(const grouped *g, const tsr_held *x, size_t rows, size_t from, size_t n, tsr_held *y,
                      tsr_err *err)
{
    TSR_TRY(tsr_hold(g->f, y, rows * n, err));
    return g->f->ops->place(g->f->ops, y->x, n, 0, x->x, x->n / rows, from, rows, n, err);
}

/* Computes q, k and v from their own weights, or from one weight for all. */
static tsr_status make_qkv(grouped *g, const tsr_activation *x, tsr_err *err)
{
    const tsr_forward *const f = g->f;
    const size_t n = g->tokens->count, d = g->dim, q = f->heads * d, kv = g->kv_heads * d,
                 values = g->kv_heads * g->v_dim;
    char name[TSR_MAX_NAME];
    const tsr_weight *w;
    tsr_held all = {0};
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_forward_find(f, &w, NULL, "%s", name_of(g, name, "qkv_proj.weight")));
    if (w != NULL) {
        TSR_GOTO(project_to(g, "qkv_proj", x, q + kv + values, &all, err));
        TSR_GOTO(cut(g, &all, n, 0, q, &g->q, err));
        TSR_GOTO(cut(g, &all, n, q, kv, &g->k, err));
        TSR_GOTO(cut(g, &all, n, q + kv, values, &g->v, err));
        goto out;
    }
    if ((f->traits & TSR_OUTPUT_GATE) != 0) {
        TSR_GOTO(project_to(g, "q_proj", x, 2 * q, &all, err));
        TSR_GOTO(cut(g, &all, n * f->heads, 0, d, &g->q, err));
        TSR_GOTO(cut(g, &all, n * f->heads, d, d, &g->gate, err));
    } else {
        TSR_GOTO(project_to(g, "q_proj", x, q, &g->q, err));
    }
    TSR_GOTO(project_to(g, "k_proj", x, kv, &g->k, err));
    if (f->keys_are_values && f->kinds[g->layer] == TSR_LAYER_FULL)
        TSR_GOTO(cut(g, &g->k, n, 0, kv, &g->v, err));
    else
        TSR_GOTO(project_to(g, "v_proj", x, values, &g->v, err));
out:
    tsr_let_go(f, &all);
    return status;
}

tsr_status tsr_forward_grow_queries(const tsr_forward *f, const tsr_tokens *tokens, tsr_activation *x, size_t width,
                                    tsr_err *err)
{
    const size_t n = tokens->count;
    if ((f->traits & TSR_LONG_QUERIES) == 0)
        return TSR_OK;
    double *const growth = malloc((n + 1) * sizeof *growth);
    tsr_status status = growth == NULL ? tsr_out_of_memory(err, "for positions") : TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < n; i++)
        growth[i] = f->query_growth * log1p(floor((double)tsr_token_position(tokens, i) / f->trained));
    if (status == TSR_OK)
        status = f->ops->add(f->ops, x, x, n, width, NULL, growth, err);
    free(growth);
    return status == TSR_OK ? tsr_forward_round(f, x, n * width, err) : status;
}

/* Applies the norm or the factor of values, if the family has it. */
static tsr_status scale_values(const grouped *g, tsr_err *err)
{
    const tsr_forward *const f = g->f;
    if (f->value_scale != 1) {
        TSR_TRY(f->ops->scale(f->ops, g->v.x, g->v.n, f->value_scale, err));
        return tsr_forward_round(f, g->v.x, g->v.n, err);
    }
    if ((f->traits & TSR_VALUE_NORM) == 0)
        return TSR_OK;
    TSR_TRY(f->ops->norm(f->ops, g->v.x, g->dim, g->v.n / g->dim, g->dim, NULL, f->eps, g->v.x, g->dim, err));
    return tsr_forward_round(f, g->v.x, g->v.n, err);
}

/* Reads the sinks of a layer to the host, from malloc. */
static tsr_status read_sinks(const grouped *g, double **sinks, tsr_err *err)
{
    const tsr_forward *const f = g->f;
    const bool of_windows = (f->traits & TSR_WINDOW_HEADS) != 0, windowed = f->kinds[g->layer] == TSR_LAYER_WINDOW;
    char name[TSR_MAX_NAME];
    name_of(g, name, of_windows ? "attention_sink_bias" : "sinks");
    return tsr_forward_vector(f, name, f->heads, (f->traits & TSR_SINKS) != 0 && (!of_windows || windowed), sinks, err);
}

/* Computes mixed [n][heads][v_dim], with its gate if there is one. */
static tsr_status attend(const grouped *g, const double *sinks, const tsr_token_choice *chosen, tsr_held *mixed,
                         tsr_err *err)
{
    const tsr_forward *const f = g->f;
    const size_t n = g->tokens->count, width = f->heads * g->v_dim;
    const tsr_op_attend args = {.tokens = g->tokens,
                                .q = g->q.x,
                                .k = g->k.x,
                                .v = g->v.x,
                                .out = mixed->x,
                                .ld_q = f->heads * g->dim,
                                .ld_out = width,
                                .heads = f->heads,
                                .kv_heads = g->kv_heads,
                                .dim = g->dim,
                                .v_dim = g->v_dim,
                                .scale = f->attention_scale,
                                .cap = f->score_cap,
                                .window = f->kinds[g->layer] == TSR_LAYER_WINDOW ? f->window : SIZE_MAX,
                                .sinks = sinks,
                                .chosen = chosen};
    const tsr_op_gate gate = {.kind = TSR_GATE_SIGMOID,
                              .gate = g->gate.x,
                              .up = mixed->x,
                              .ld = width,
                              .step = 1,
                              .rows = n,
                              .n = width,
                              .y = mixed->x};
    TSR_TRY(f->ops->attend(f->ops, &args, err));
    TSR_TRY(tsr_forward_round(f, mixed->x, mixed->n, err));
    if (g->gate.x == NULL)
        return TSR_OK;
    TSR_TRY(f->ops->gate(f->ops, &gate, err));
    return tsr_forward_round(f, mixed->x, mixed->n, err);
}

tsr_status tsr_forward_attention(tsr_forward *f, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                                 tsr_held *out, tsr_err *err)
{
    const size_t n = tokens->count;
    const bool full = f->kinds[layer] == TSR_LAYER_FULL;
    grouped g = {.f = f, .layer = layer, .tokens = tokens};
    g.kv_heads = full ? f->full_kv_heads : f->kv_heads;
    g.dim = full ? f->full_dim : f->head_dim;
    g.v_dim = f->value_dim != 0 ? f->value_dim : g.dim;
    const size_t width = f->heads * g.v_dim;
    tsr_held mixed = {0};
    double *sinks = NULL;
    char name[TSR_MAX_NAME];
    tsr_status status = TSR_OK;
    TSR_GOTO(make_qkv(&g, x, err));
    TSR_GOTO(prepare(&g, g.q.x, f->heads, false, err));
    TSR_GOTO(prepare(&g, g.k.x, g.kv_heads, true, err));
    TSR_GOTO(tsr_forward_grow_queries(f, tokens, g.q.x, f->heads * g.dim, err));
    TSR_GOTO(scale_values(&g, err));
    TSR_GOTO(tsr_forward_collect_cache(f, layer, "k_cache", g.k.x, g.k.n, err));
    TSR_GOTO(tsr_forward_collect_cache(f, layer, "v_cache", g.v.x, g.v.n, err));
    TSR_GOTO(read_sinks(&g, &sinks, err));
    TSR_GOTO(tsr_hold(f, &mixed, n * width, err));
    const tsr_indexer_inputs to_indexer = {.tokens = tokens, .x = x};
    const tsr_token_choice *chosen;
    TSR_GOTO(tsr_forward_choose_tokens(f, layer, &to_indexer, &chosen, err));
    TSR_GOTO(attend(&g, sinks, chosen, &mixed, err));
    name_of(&g, name, "o_proj");
    TSR_GOTO(tsr_forward_linear(f, name, mixed.x, n, f->hidden, width, out, err));
    status = tsr_forward_round(f, out->x, out->n, err);
out:
    tsr_let_go(f, &g.q);
    tsr_let_go(f, &g.k);
    tsr_let_go(f, &g.v);
    tsr_let_go(f, &g.gate);
    tsr_let_go(f, &mixed);
    free(sinks);
    return status;
}
