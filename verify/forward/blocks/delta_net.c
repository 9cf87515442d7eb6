/* Computes a gated delta net: convolution, delta rule, gated norm. */
#include "verify/forward/forward_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A layer. Columns of each token in activations: q and k [k_heads][dim], v and z [heads][v_dim], beta and decay [heads]. */
typedef struct delta_net {
    tsr_forward *f;
    size_t layer;
    const tsr_tokens *tokens;
    size_t heads, k_heads, dim, v_dim, taps;
    tsr_held q, k, v, z, beta, decay;
} delta_net;

static tsr_status read_sizes(delta_net *d, tsr_err *err)
{
    const struct {
        const char *key;
        size_t *value;
    } kKeys[] = {{"linear_num_value_heads", &d->heads},
                 {"linear_num_key_heads", &d->k_heads},
                 {"linear_key_head_dim", &d->dim},
                 {"linear_value_head_dim", &d->v_dim},
                 {"linear_conv_kernel_dim", &d->taps}};
    const char *const path = d->f->side->checkpoint->path;
    for (size_t i = 0; i < sizeof kKeys / sizeof *kKeys; i++) {
        *kKeys[i].value = tsr_forward_size(d->f, kKeys[i].key, 0);
        if (*kKeys[i].value == 0 || *kKeys[i].value > TSR_MAX_HEAD)
            return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": %s is missing or not from 1 to %d", path,
                            kKeys[i].key, TSR_MAX_HEAD);
    }
    if (d->heads % d->k_heads != 0)
        return tsr_fail(err, TSR_E_SHAPE, "%s/" TSR_CONFIG_NAME ": %zu heads of values share %zu of keys", path,
                        d->heads, d->k_heads);
    return TSR_OK;
}

/* Computes y [n][width] = PART x. */
static tsr_status project(const delta_net *d, const char *part, const double *x, size_t width, tsr_held *y,
                          tsr_err *err)
{
    char name[TSR_MAX_NAME];
    tsr_forward_name(d->f, name, d->layer, part);
    TSR_TRY(tsr_forward_linear(d->f, name, x, d->tokens->count, width, d->f->hidden, y, err));
    return tsr_forward_round(d->f, y->x, y->n, err);
}

/* Copies the columns of x [rows][..] to the parts, one after another. */
static tsr_status deal(const delta_net *d, const tsr_held *x, size_t rows, tsr_held *const *parts, const size_t *widths,
                       size_t n, tsr_err *err)
{
    tsr_ops *const ops = d->f->ops;
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        TSR_TRY(tsr_hold(d->f, parts[i], rows * widths[i], err));
        TSR_TRY(ops->place(ops, parts[i]->x, widths[i], 0, x->x, x->n / rows, from, rows, widths[i], err));
        from += widths[i];
    }
    return TSR_OK;
}

/* Projects with weights whose rows are dealt by heads of keys: q, k, v, z of each, and beta, decay of each. */
static tsr_status project_by_heads(delta_net *d, const double *x, tsr_err *err)
{
    const size_t share = d->heads / d->k_heads, rows = d->tokens->count * d->k_heads;
    const size_t widths[] = {d->dim, d->dim, share * d->v_dim, share * d->v_dim}, of_gates[] = {share, share};
    tsr_held *const parts[] = {&d->q, &d->k, &d->v, &d->z}, *const gates[] = {&d->beta, &d->decay};
    tsr_held all = {0}, both = {0};
    tsr_status status;
    TSR_GOTO(project(d, "linear_attn.in_proj_qkvz", x, 2 * (d->k_heads * d->dim + d->heads * d->v_dim), &all, err));
    TSR_GOTO(deal(d, &all, rows, parts, widths, 4, err));
    TSR_GOTO(project(d, "linear_attn.in_proj_ba", x, 2 * d->heads, &both, err));
    status = deal(d, &both, rows, gates, of_gates, 2, err);
out:
    tsr_let_go(d->f, &all);
    tsr_let_go(d->f, &both);
    return status;
}

/* Projects with a weight for q, k and v, and one for each of z, beta and decay. */
static tsr_status project_by_parts(delta_net *d, const double *x, tsr_err *err)
{
    const size_t keys = d->k_heads * d->dim, values = d->heads * d->v_dim, widths[] = {keys, keys, values};
    tsr_held *const parts[] = {&d->q, &d->k, &d->v};
    tsr_held all = {0};
    tsr_status status;
    TSR_GOTO(project(d, "linear_attn.in_proj_qkv", x, 2 * keys + values, &all, err));
    TSR_GOTO(deal(d, &all, d->tokens->count, parts, widths, 3, err));
    TSR_GOTO(project(d, "linear_attn.in_proj_z", x, values, &d->z, err));
    TSR_GOTO(project(d, "linear_attn.in_proj_b", x, d->heads, &d->beta, err));
    status = project(d, "linear_attn.in_proj_a", x, d->heads, &d->decay, err);
out:
    tsr_let_go(d->f, &all);
    return status;
}

/* Applies the convolution to q, k and v, whose filters are one after another in conv1d. */
static tsr_status convolve(delta_net *d, tsr_err *err)
{
    const tsr_forward *const f = d->f;
    const size_t keys = d->k_heads * d->dim, values = d->heads * d->v_dim, widths[] = {keys, keys, values};
    tsr_held *const parts[] = {&d->q, &d->k, &d->v};
    double *weight = NULL;
    tsr_held y = {0};
    char name[TSR_MAX_NAME];
    tsr_status status = TSR_OK;
    tsr_forward_name(f, name, d->layer, "linear_attn.conv1d.weight");
    TSR_GOTO(tsr_forward_elements(f, name, (2 * keys + values) * d->taps, &weight, err));
    const double *filters = weight;
    for (size_t i = 0; i < 3; filters += widths[i++] * d->taps) {
        TSR_GOTO(tsr_hold(f, &y, parts[i]->n, err));
        const tsr_op_convolve args = {
            .tokens = d->tokens, .x = parts[i]->x, .y = y.x, .weight = filters, .channels = widths[i], .taps = d->taps};
        TSR_GOTO(f->ops->convolve(f->ops, &args, err));
        TSR_GOTO(tsr_forward_round(f, y.x, y.n, err));
        tsr_let_go(f, parts[i]);
        *parts[i] = y;
        y = (tsr_held){0};
    }
out:
    tsr_let_go(f, &y);
    free(weight);
    return status;
}

/* Computes mixed [n][heads][v_dim] by the delta rule. */
static tsr_status recur(const delta_net *d, tsr_held *mixed, tsr_err *err)
{
    const tsr_forward *const f = d->f;
    double *rate = NULL, *shift = NULL;
    char name[TSR_MAX_NAME];
    tsr_status status = TSR_OK;
    TSR_GOTO(
        tsr_forward_vector(f, tsr_forward_name(f, name, d->layer, "linear_attn.A_log"), d->heads, true, &rate, err));
    for (size_t h = 0; h < d->heads; h++)
        rate[h] = exp(rate[h]);
    tsr_forward_name(f, name, d->layer, "linear_attn.dt_bias");
    TSR_GOTO(tsr_forward_vector(f, name, d->heads, true, &shift, err));
    TSR_GOTO(tsr_hold(f, mixed, d->tokens->count * d->heads * d->v_dim, err));
    const tsr_op_delta args = {.tokens = d->tokens,
                               .q = d->q.x,
                               .k = d->k.x,
                               .v = d->v.x,
                               .decay = d->decay.x,
                               .beta = d->beta.x,
                               .rate = rate,
                               .shift = shift,
                               .out = mixed->x,
                               .heads = d->heads,
                               .k_heads = d->k_heads,
                               .dim = d->dim,
                               .v_dim = d->v_dim,
                               .decays = 1};
    TSR_GOTO(f->ops->delta(f->ops, &args, err));
    status = tsr_forward_round(f, mixed->x, mixed->n, err);
out:
    free(rate);
    free(shift);
    return status;
}

/* Applies the norm of each head and the gate z. Its gain does not begin at 1, unlike that of other norms. */
static tsr_status norm_and_gate(const delta_net *d, tsr_held *mixed, tsr_err *err)
{
    const tsr_forward *const f = d->f;
    const size_t rows = d->tokens->count * d->heads, n = d->v_dim;
    const tsr_op_gate gate = {
        .kind = TSR_GATE_SILU, .gate = d->z.x, .up = mixed->x, .ld = n, .step = 1, .rows = rows, .n = n, .y = mixed->x};
    double *gain = NULL;
    char name[TSR_MAX_NAME];
    tsr_forward_name(f, name, d->layer, "linear_attn.norm.weight");
    tsr_status status = tsr_forward_vector(f, name, n, true, &gain, err);
    if (status == TSR_OK)
        status = f->ops->norm(f->ops, mixed->x, n, rows, n, gain, f->eps, mixed->x, n, err);
    if (status == TSR_OK)
        status = tsr_forward_gate(f, &gate, err);
    free(gain);
    return status;
}

tsr_status tsr_forward_delta_net(tsr_forward *f, size_t layer, const tsr_tokens *tokens, const double *x, tsr_held *out,
                                 tsr_err *err)
{
    delta_net d = {.f = f, .layer = layer, .tokens = tokens};
    tsr_held mixed = {0};
    char name[TSR_MAX_NAME];
    const tsr_weight *by_heads;
    tsr_status status = TSR_OK;
    TSR_TRY(read_sizes(&d, err));
    tsr_forward_name(f, name, layer, "linear_attn.in_proj_qkvz.weight");
    TSR_TRY(tsr_forward_find(f, &by_heads, NULL, "%s", name));
    TSR_GOTO(by_heads != NULL ? project_by_heads(&d, x, err) : project_by_parts(&d, x, err));
    TSR_GOTO(convolve(&d, err));
    TSR_GOTO(recur(&d, &mixed, err));
    TSR_GOTO(norm_and_gate(&d, &mixed, err));
    tsr_forward_name(f, name, layer, "linear_attn.out_proj");
    TSR_GOTO(tsr_forward_linear(f, name, mixed.x, tokens->count, f->hidden, d.heads * d.v_dim, out, err));
    status = tsr_forward_round(f, out->x, out->n, err);
out:
    for (size_t i = 0; i < 6; i++)
        tsr_let_go(f, (tsr_held *const[]){&d.q, &d.k, &d.v, &d.z, &d.beta, &d.decay}[i]);
    tsr_let_go(f, &mixed);
    return status;
}
