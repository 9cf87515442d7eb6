/* Computes a gated delta net: convolution, delta rule, gated norm. */
#include "verify/forward/blocks/mixer.h"

/* A layer. Columns of each token in activations: q and k [k_heads][dim], v and z [heads][v_dim], beta and decay
 * [heads]. */
typedef struct delta_net {
    tsr_mixer mixer;
    size_t heads, k_heads, dim, v_dim, taps;
    tsr_held q, k, v, z, beta, decay;
} delta_net;

static tsr_status read_sizes(delta_net *d, tsr_err *err)
{
    const tsr_mixer *const m = &d->mixer;
    TSR_TRY(tsr_mixer_size(m, "linear_num_value_heads", NULL, &d->heads, err));
    TSR_TRY(tsr_mixer_size(m, "linear_num_key_heads", NULL, &d->k_heads, err));
    TSR_TRY(tsr_mixer_size(m, "linear_key_head_dim", NULL, &d->dim, err));
    TSR_TRY(tsr_mixer_size(m, "linear_value_head_dim", NULL, &d->v_dim, err));
    TSR_TRY(tsr_mixer_size(m, "linear_conv_kernel_dim", NULL, &d->taps, err));
    return d->heads % d->k_heads == 0
               ? TSR_OK
               : tsr_fail(err, TSR_E_SHAPE, "%s/" TSR_CONFIG_NAME ": %zu heads of values share %zu of keys",
                          m->f->side->checkpoint->path, d->heads, d->k_heads);
}

/* Projects with weights whose rows are dealt by heads of keys: q, k, v, z of each, and beta, decay of each. */
static tsr_status project_by_heads(delta_net *d, const tsr_activation *x, tsr_err *err)
{
    const tsr_mixer *const m = &d->mixer;
    const size_t share = d->heads / d->k_heads, rows = m->tokens->count * d->k_heads, values = share * d->v_dim;
    const tsr_mixer_part parts[] = {{&d->q, d->dim}, {&d->k, d->dim}, {&d->v, values}, {&d->z, values}},
                         gates[] = {{&d->beta, share}, {&d->decay, share}};
    tsr_held all = {0}, both = {0};
    tsr_status status;
    TSR_GOTO(tsr_mixer_project(m, "in_proj_qkvz", x, 2 * d->k_heads * (d->dim + values), m->f->hidden, &all, err));
    TSR_GOTO(tsr_mixer_deal(m, &all, rows, parts, 4, err));
    TSR_GOTO(tsr_mixer_project(m, "in_proj_ba", x, 2 * d->heads, m->f->hidden, &both, err));
    status = tsr_mixer_deal(m, &both, rows, gates, 2, err);
out:
    tsr_let_go(m->f, &all);
    tsr_let_go(m->f, &both);
    return status;
}

/* Projects with a weight for q, k and v, and one for each of z, beta and decay. */
static tsr_status project_by_parts(delta_net *d, const tsr_activation *x, tsr_err *err)
{
    const tsr_mixer *const m = &d->mixer;
    const size_t keys = d->k_heads * d->dim, values = d->heads * d->v_dim, hidden = m->f->hidden;
    const tsr_mixer_part parts[] = {{&d->q, keys}, {&d->k, keys}, {&d->v, values}};
    tsr_held all = {0};
    tsr_status status;
    TSR_GOTO(tsr_mixer_project(m, "in_proj_qkv", x, 2 * keys + values, hidden, &all, err));
    TSR_GOTO(tsr_mixer_deal(m, &all, m->tokens->count, parts, 3, err));
    TSR_GOTO(tsr_mixer_project(m, "in_proj_z", x, values, hidden, &d->z, err));
    TSR_GOTO(tsr_mixer_project(m, "in_proj_b", x, d->heads, hidden, &d->beta, err));
    status = tsr_mixer_project(m, "in_proj_a", x, d->heads, hidden, &d->decay, err);
out:
    tsr_let_go(m->f, &all);
    return status;
}

/* Computes mixed [n][heads][v_dim] by convolution and the delta rule. */
static tsr_status recur(delta_net *d, tsr_held *mixed, tsr_err *err)
{
    const tsr_mixer *const m = &d->mixer;
    const size_t keys = d->k_heads * d->dim, values = d->heads * d->v_dim;
    const tsr_mixer_part parts[] = {{&d->q, keys}, {&d->k, keys}, {&d->v, values}};
    TSR_TRY(tsr_mixer_convolve(m, "conv1d", parts, 3, d->taps, err));
    const tsr_op_recur args = {.kind = TSR_RECUR_DELTA,
                               .q = d->q.x,
                               .k = d->k.x,
                               .v = d->v.x,
                               .decay = d->decay.x,
                               .beta = d->beta.x,
                               .heads = d->heads,
                               .k_heads = d->k_heads,
                               .dim = d->dim,
                               .v_dim = d->v_dim,
                               .decays = 1};
    return tsr_mixer_recur(m, args, mixed, err);
}

/* Applies the norm of each head, then the gate z. */
static tsr_status norm_and_gate(const delta_net *d, const tsr_held *mixed, tsr_err *err)
{
    const tsr_op_gate gate = tsr_mixer_gate(TSR_GATE_SILU, &d->z, mixed, d->heads * d->v_dim);
    TSR_TRY(tsr_mixer_norm(&d->mixer, "norm", mixed, 1, d->v_dim, err));
    return tsr_forward_gate(d->mixer.f, &gate, err);
}

tsr_status tsr_forward_delta_net(tsr_forward *f, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                                 tsr_held *out, tsr_err *err)
{
    delta_net d = {.mixer = {f, layer, tokens, "linear_attn"}};
    tsr_held mixed = {0}, *const held[] = {&d.q, &d.k, &d.v, &d.z, &d.beta, &d.decay, &mixed};
    char name[TSR_MAX_NAME];
    const tsr_weight *by_heads;
    tsr_status status = TSR_OK;
    TSR_TRY(read_sizes(&d, err));
    tsr_forward_name(f, name, layer, "linear_attn.in_proj_qkvz.weight");
    TSR_TRY(tsr_forward_find(f, &by_heads, NULL, "%s", name));
    TSR_GOTO(by_heads != NULL ? project_by_heads(&d, x, err) : project_by_parts(&d, x, err));
    TSR_GOTO(recur(&d, &mixed, err));
    TSR_GOTO(norm_and_gate(&d, &mixed, err));
    status = tsr_mixer_project(&d.mixer, "out_proj", mixed.x, f->hidden, d.heads * d.v_dim, out, err);
out:
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        tsr_let_go(f, held[i]);
    return status;
}
