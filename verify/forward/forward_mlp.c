/* Computes the MLP of a layer: dense, or a router with experts over their tokens. */
#include "verify/forward/forward_parts.h"

#include "verify/values/decode.h"
#include "verify/values/weight_product.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one MLP ---- */

/* The parts of an MLP before its last weight: gate and up, or both in one. */
typedef struct inputs {
    tsr_held held[2];
    const tsr_activation *gate, *up;
    size_t ld, width;
} inputs;

/* Returns the number of rows of a weight that is a matrix. */
static size_t rows_of(const tsr_weight *w)
{
    return (size_t)(w->coding == TSR_PLAIN ? w->values->shape[0] : w->rows);
}

/* Computes y = MODULE.LEAF x for n rows of x, rounded as served. */
static tsr_status project(tsr_forward *f, const char *module, const char *leaf, const tsr_activation *x, size_t n,
                          size_t rows, tsr_held *y, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    snprintf(name, sizeof name, "%.*s.%s", TSR_MAX_NAME / 2, module, leaf);
    TSR_TRY(tsr_forward_linear(f, name, x, n, rows, f->hidden, y, err));
    return tsr_forward_round(f, y->x, y->n, err);
}

static tsr_status make_inputs(tsr_forward *f, const tsr_mlp_names *names, const char *module, const tsr_activation *x,
                              size_t n, inputs *in, tsr_err *err)
{
    const tsr_weight *w = NULL;
    if (names->both != NULL)
        TSR_TRY(tsr_forward_find(f, &w, names->up == NULL ? err : NULL, "%s.%s.weight", module, names->both));
    if (w != NULL) {
        in->width = rows_of(w) / 2;
        in->ld = 2 * in->width;
        TSR_TRY(project(f, module, names->both, x, n, in->ld, &in->held[0], err));
        in->gate = in->held[0].x;
        in->up = tsr_at(f->ops, in->gate, in->width);
        return TSR_OK;
    }
    TSR_TRY(tsr_forward_find(f, &w, err, "%s.%s.weight", module, names->up));
    in->ld = in->width = rows_of(w);
    TSR_TRY(project(f, module, names->up, x, n, in->width, &in->held[1], err));
    if (names->gate != NULL)
        TSR_TRY(project(f, module, names->gate, x, n, in->width, &in->held[0], err));
    in->up = in->held[1].x;
    in->gate = names->gate != NULL ? in->held[0].x : in->up;
    return TSR_OK;
}

/* Computes out [n][hidden] = W_down gate(W_gate x, W_up x). */
static tsr_status gated(tsr_forward *f, const tsr_mlp_names *names, const char *module, const tsr_activation *x,
                        size_t n, tsr_held *out, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    inputs in = {0};
    tsr_held inner = {0};
    tsr_status status = TSR_OK;
    TSR_GOTO(make_inputs(f, names, module, x, n, &in, err));
    TSR_GOTO(tsr_hold_unset(f, &inner, n * in.width, err));
    const tsr_op_gate gate = {.kind = f->gate,
                              .limit = f->gate_limit,
                              .gate = in.gate,
                              .up = in.up,
                              .ld = in.ld,
                              .step = 1,
                              .rows = n,
                              .n = in.width,
                              .y = inner.x};
    TSR_GOTO(tsr_forward_gate(f, &gate, err));
    tsr_let_go(f, &in.held[0]);
    tsr_let_go(f, &in.held[1]);
    snprintf(name, sizeof name, "%.*s.%s", TSR_MAX_NAME / 2, module, names->down);
    TSR_GOTO(tsr_forward_linear(f, name, inner.x, n, f->hidden, in.width, out, err));
    status = tsr_forward_round(f, out->x, out->n, err);
out:
    tsr_let_go(f, &in.held[0]);
    tsr_let_go(f, &in.held[1]);
    tsr_let_go(f, &inner);
    return status;
}

/* ---- experts ---- */

typedef struct moe {
    tsr_forward *f;
    const tsr_tokens *tokens;
    char experts_at[TSR_MAX_NAME / 2];
    bool stacked;
    size_t layer, experts, n;
    const tsr_activation *x, *to_router;
    tsr_activation *out;
    uint32_t *choices, *rows; /* [n][chosen], [n] */
    double *weights, *shares; /* [n][chosen], [n] */
} moe;

/* Records that no token reached an expert. Experts of a stack have their numbers of tokens in one entry. */
static tsr_status collect_none(const moe *m, size_t e, tsr_err *err)
{
    const tsr_mlp_names *const names = m->f->family->moe->expert;
    const char *const parts[] = {names->gate, names->up, names->down};
    const tsr_weight *w;
    char module[TSR_MAX_NAME];
    for (size_t i = 0; m->f->collector != NULL && !m->stacked && i < 3; i++) {
        snprintf(module, sizeof module, "%s.%zu.%s", m->experts_at, e, parts[i]);
        TSR_TRY(tsr_forward_find(m->f, &w, err, "%s.weight", module));
        const size_t cols = (size_t)(w->coding == TSR_PLAIN ? w->values->shape[1] : w->cols);
        TSR_TRY(tsr_forward_collect(m->f, module, NULL, 0, cols, err));
    }
    return TSR_OK;
}

/* Adds the output of expert e, for the tokens that chose it. */
static tsr_status run_expert(const moe *m, size_t e, tsr_err *err)
{
    tsr_forward *const f = m->f;
    const size_t chosen = f->router.chosen;
    char module[TSR_MAX_NAME];
    tsr_held in = {0}, out = {0};
    size_t taken = 0;
    for (size_t i = 0; i < m->n * chosen; i++) {
        if (m->choices[i] != e)
            continue;
        m->rows[taken] = (uint32_t)(i / chosen);
        m->shares[taken++] = m->weights[i];
    }
    if (taken == 0)
        return collect_none(m, e, err);
    tsr_status status = tsr_hold_unset(f, &in, taken * f->hidden, err);
    if (status == TSR_OK)
        status = f->ops->take(f->ops, in.x, m->x, m->rows, taken, f->hidden, err);
    snprintf(module, sizeof module, "%s.%zu", m->experts_at, e);
    if (status == TSR_OK)
        status = m->stacked ? tsr_forward_stacked(f, m->layer, m->experts, e, in.x, taken, &out, err)
                            : gated(f, f->family->moe->expert, module, in.x, taken, &out, err);
    if (status == TSR_OK)
        status = f->ops->add(f->ops, m->out, out.x, taken, f->hidden, m->rows, m->shares, err);
    tsr_let_go(f, &in);
    tsr_let_go(f, &out);
    return status;
}

/* Reads the bias of the choice of experts, which families with sigmoid scores need if they have a name for it. */
static tsr_status read_bias(const tsr_forward *f, const char *name, size_t experts, double **bias, tsr_err *err)
{
    const bool named = f->family->moe->bias != NULL;
    const tsr_weight *w = NULL;
    if (named)
        TSR_TRY(tsr_forward_find(f, &w, f->router.scoring != TSR_SCORE_SOFTMAX ? err : NULL, "%s", name));
    return w == NULL ? TSR_OK : tsr_forward_elements(f, name, experts, bias, err);
}

/* Multiplies the weights of the chosen experts by the experts' factors. */
static tsr_status scale_weights(const moe *m, const char *name, tsr_err *err)
{
    double *factors;
    const tsr_status status = tsr_forward_elements(m->f, name, m->experts, &factors, err);
    for (size_t i = 0; status == TSR_OK && i < m->n * m->f->router.chosen; i++)
        m->weights[i] *= factors[m->choices[i]];
    free(factors);
    return status;
}

/* Sets the choices by a table of the experts of each token, if the layer has one. */
static tsr_status look_up(const moe *m, bool *found, tsr_err *err)
{
    const tsr_forward *const f = m->f;
    const tsr_checkpoint *const c = f->side->checkpoint;
    const size_t chosen = f->router.chosen;
    char name[TSR_MAX_NAME];
    *found = false;
    if (f->family->moe->table == NULL)
        return TSR_OK;
    const tsr_tensor *const t = tsr_checkpoint_find(c, tsr_forward_name(f, name, m->layer, f->family->moe->table));
    if (t == NULL)
        return TSR_OK;
    if (t->rank != 2 || t->shape[0] != f->vocabulary || t->shape[1] != chosen ||
        (t->dtype != TSR_I64 && t->dtype != TSR_I32))
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' is not [%zu, %zu] of I64 or I32", c->path, name, f->vocabulary,
                        chosen);
    double *const table = malloc((f->vocabulary * chosen + 1) * sizeof *table);
    tsr_status status = table == NULL ? tsr_out_of_memory(err, "for routing") : tsr_decode_tensor(c, t, table, err);
    for (size_t i = 0; status == TSR_OK && i < m->n * chosen; i++) {
        const size_t at = (size_t)m->tokens->ids[i / chosen] * chosen + i % chosen;
        if (!(table[at] >= 0 && table[at] < (double)m->experts))
            status = tsr_fail(err, TSR_E_VALUE, "%s: '%s'[%zu, %zu] is not one of %zu experts", c->path, name,
                              at / chosen, at % chosen, m->experts);
        else
            m->choices[i] = (uint32_t)table[at];
    }
    free(table);
    *found = true;
    return status;
}

/* Computes the router's logits [n][experts]. The bias behind its name may be that of the choice alone. */
static tsr_status make_logits(const moe *m, const char *router, tsr_held *y, tsr_err *err)
{
    tsr_forward *const f = m->f;
    const tsr_weight *w;
    if (f->family->moe->table == NULL)
        return tsr_forward_linear(f, router, m->to_router, m->n, m->experts, f->hidden, y, err);
    TSR_TRY(tsr_forward_find(f, &w, err, "%s.weight", router));
    TSR_TRY(tsr_linear_expect(f->side->checkpoint, w, m->experts, f->hidden, err));
    const tsr_layer_product p = {
        .weight = w, .rows = m->experts, .cols = f->hidden, .x = m->to_router, .ld_x = f->hidden, .n = m->n};
    return tsr_forward_product(f, &p, y, err);
}

static tsr_status choose_experts(const moe *m, tsr_err *err)
{
    tsr_forward *const f = m->f;
    const tsr_moe_names *const names = f->family->moe;
    char router[TSR_MAX_NAME], name[TSR_MAX_NAME];
    tsr_held of_ops = {0};
    double *bias = NULL, *const logits = malloc((m->n * m->experts + 1) * sizeof *logits);
    tsr_status status = logits == NULL ? tsr_out_of_memory(err, "for routing") : TSR_OK;
    bool chosen = false;
    tsr_forward_name(f, router, m->layer, names->router);
    if (status == TSR_OK)
        status = look_up(m, &chosen, err);
    if (status == TSR_OK && !chosen)
        status = read_bias(f, tsr_forward_name(f, name, m->layer, names->bias == NULL ? "" : names->bias), m->experts,
                           &bias, err);
    if (status == TSR_OK)
        status = make_logits(m, router, &of_ops, err);
    if (status == TSR_OK)
        status = f->ops->get(f->ops, logits, of_ops.x, m->n * m->experts, err);
    if (status == TSR_OK)
        status = tsr_forward_route(f, router, m->experts, bias, logits, m->n, chosen, m->choices, m->weights, err);
    if (status == TSR_OK && names->expert_scale != NULL)
        status = scale_weights(m, tsr_forward_name(f, name, m->layer, names->expert_scale), err);
    tsr_let_go(f, &of_ops);
    free(bias);
    free(logits);
    return status;
}

static tsr_status run_experts(tsr_forward *f, size_t layer, const tsr_tokens *tokens, const tsr_weight *gate,
                              const tsr_activation *x, const tsr_activation *to_router, tsr_held *out,
                              uint32_t *choices, tsr_err *err)
{
    const size_t chosen = f->router.chosen, n = tokens->count;
    moe m = {.f = f,
             .tokens = tokens,
             .layer = layer,
             .experts = (size_t)gate->values->shape[0],
             .n = n,
             .x = x,
             .to_router = to_router};
    char name[TSR_MAX_NAME];
    tsr_status status = TSR_OK;
    snprintf(m.experts_at, sizeof m.experts_at, "%.*s", TSR_MAX_NAME / 2 - 1,
             tsr_forward_name(f, name, layer, f->family->moe->experts));
    m.stacked = tsr_forward_has_stacks(f, layer);
    m.choices = malloc((n * chosen + 1) * sizeof *m.choices);
    m.weights = malloc((n * chosen + 1) * sizeof *m.weights);
    m.rows = malloc((n + 1) * sizeof *m.rows);
    m.shares = malloc((n + 1) * sizeof *m.shares);
    if (m.choices == NULL || m.weights == NULL || m.rows == NULL || m.shares == NULL)
        TSR_GOTO(tsr_out_of_memory(err, "for routing"));
    TSR_GOTO(choose_experts(&m, err));
    tsr_ahead_choose(f, m.experts, m.choices, n * chosen);
    TSR_GOTO(tsr_hold(f, out, n * f->hidden, err));
    m.out = out->x;
    for (size_t e = 0; e < m.experts; e++)
        TSR_GOTO(run_expert(&m, e, err));
    if (choices != NULL)
        memcpy(choices, m.choices, n * chosen * sizeof *choices);
out:
    free(m.choices);
    free(m.weights);
    free(m.rows);
    free(m.shares);
    return status;
}

/* Adds the shared expert to out, multiplied by its gate if the family has one. */
static tsr_status add_shared(tsr_forward *f, size_t layer, const tsr_activation *x, size_t n, tsr_activation *out,
                             tsr_err *err)
{
    const tsr_moe_names *const names = f->family->moe;
    char module[TSR_MAX_NAME];
    const tsr_weight *w = NULL;
    tsr_held shared = {0}, gate = {0};
    double *shares = NULL;
    tsr_status status = TSR_OK;
    if (names->shared == NULL)
        return TSR_OK;
    tsr_forward_name(f, module, layer, names->shared);
    TSR_TRY(tsr_forward_find(f, &w, NULL, "%s.%s.weight", module, names->of_shared->down));
    if (w == NULL)
        return TSR_OK;
    TSR_GOTO(gated(f, names->of_shared, module, x, n, &shared, err));
    if (names->shared_gate != NULL) {
        tsr_forward_name(f, module, layer, names->shared_gate);
        TSR_GOTO(tsr_forward_linear(f, module, x, n, 1, f->hidden, &gate, err));
        shares = malloc((n + 1) * sizeof *shares);
        if (shares == NULL)
            TSR_GOTO(tsr_out_of_memory(err, "for experts"));
        TSR_GOTO(f->ops->get(f->ops, shares, gate.x, n, err));
        for (size_t i = 0; i < n; i++)
            shares[i] = 1 / (1 + exp(-shares[i]));
    }
    status = f->ops->add(f->ops, out, shared.x, n, f->hidden, NULL, shares, err);
out:
    tsr_let_go(f, &shared);
    tsr_let_go(f, &gate);
    free(shares);
    return status;
}

/* Computes y = the norm NAME of x. */
static tsr_status norm_of(const tsr_forward *f, size_t layer, const char *name, const tsr_activation *x, size_t n,
                          tsr_activation *y, tsr_err *err)
{
    char full[TSR_MAX_NAME];
    return tsr_forward_norm(f, tsr_forward_name(f, full, layer, name), x, n, f->hidden, y, err);
}

/* Computes the input of a router with a gain of its own: the norm of the stream, times the gain over sqrt(hidden). */
static tsr_status make_router_input(const tsr_forward *f, size_t layer, const tsr_activation *stream, size_t n,
                                    tsr_activation *y, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    double *gain;
    tsr_forward_name(f, name, layer, f->family->moe->router_scale);
    tsr_status status = tsr_forward_elements(f, name, f->hidden, &gain, err);
    for (size_t i = 0; status == TSR_OK && i < f->hidden; i++)
        gain[i] /= sqrt((double)f->hidden);
    if (status == TSR_OK)
        status = f->ops->norm(f->ops, stream, f->hidden, n, f->hidden, gain, f->eps, y, f->hidden, err);
    free(gain);
    return status == TSR_OK ? tsr_forward_round(f, y, n * f->hidden, err) : status;
}

/* Computes the sum of an MLP over x and of experts over the stream, each behind a norm of its own. */
static tsr_status run_both(tsr_forward *f, size_t layer, const tsr_tokens *tokens, const tsr_weight *gate,
                           const tsr_activation *x, const tsr_activation *stream, tsr_held *out, uint32_t *choices,
                           tsr_err *err)
{
    const size_t n = tokens->count, size = n * f->hidden;
    char name[TSR_MAX_NAME];
    tsr_held dense = {0}, normed = {0}, to_router = {0};
    tsr_status status;
    TSR_GOTO(gated(f, f->family->mlp, tsr_forward_name(f, name, layer, "mlp"), x, n, &dense, err));
    TSR_GOTO(norm_of(f, layer, "post_feedforward_layernorm_1.weight", dense.x, n, dense.x, err));
    TSR_GOTO(tsr_hold(f, &normed, size, err));
    TSR_GOTO(norm_of(f, layer, "pre_feedforward_layernorm_2.weight", stream, n, normed.x, err));
    TSR_GOTO(tsr_hold(f, &to_router, size, err));
    TSR_GOTO(make_router_input(f, layer, stream, n, to_router.x, err));
    TSR_GOTO(run_experts(f, layer, tokens, gate, normed.x, to_router.x, out, choices, err));
    TSR_GOTO(tsr_forward_round(f, out->x, size, err));
    TSR_GOTO(norm_of(f, layer, "post_feedforward_layernorm_2.weight", out->x, n, out->x, err));
    TSR_GOTO(f->ops->add(f->ops, out->x, dense.x, n, f->hidden, NULL, NULL, err));
    status = tsr_forward_round(f, out->x, size, err);
out:
    tsr_let_go(f, &dense);
    tsr_let_go(f, &normed);
    tsr_let_go(f, &to_router);
    return status;
}

tsr_status tsr_forward_mlp(tsr_forward *f, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                           const tsr_activation *stream, tsr_held *out, uint32_t *choices, bool *routed, tsr_err *err)
{
    const size_t n = tokens->count;
    const char *const dense = f->family->moe->dense;
    char name[TSR_MAX_NAME];
    const tsr_weight *gate;
    TSR_TRY(tsr_forward_find(f, &gate, NULL, "%s.weight", tsr_forward_name(f, name, layer, f->family->moe->router)));
    *routed = gate != NULL;
    if (gate == NULL)
        return gated(f, f->family->mlp, tsr_forward_name(f, name, layer, dense == NULL ? "mlp" : dense), x, n, out,
                     err);
    if (f->family->moe->router_scale != NULL)
        return run_both(f, layer, tokens, gate, x, stream, out, choices, err);
    TSR_TRY(run_experts(f, layer, tokens, gate, x, x, out, choices, err));
    TSR_TRY(add_shared(f, layer, x, n, out->x, err));
    return tsr_forward_round(f, out->x, out->n, err);
}
