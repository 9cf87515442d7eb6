/* Computes a Mamba-2 block: convolution, scan, norm of what is gated. */
#include "verify/forward/blocks/mixer.h"

#include <stdlib.h>

/* A layer. Columns of each token in activations: z and v [heads][v_dim], q and k [groups][dim], step [heads]. */
typedef struct mamba {
    tsr_mixer mixer;
    size_t heads, groups, dim, v_dim, taps;
    tsr_held z, v, k, q, step;
} mamba;

/* Reads sizes by the names of Granite or Nemotron-H. Without a size of heads they divide expand * hidden. */
static tsr_status read_sizes(mamba *b, tsr_err *err)
{
    const tsr_mixer *const m = &b->mixer;
    TSR_TRY(tsr_mixer_size(m, "mamba_n_heads", "mamba_num_heads", &b->heads, err));
    TSR_TRY(tsr_mixer_size(m, "mamba_n_groups", "n_groups", &b->groups, err));
    TSR_TRY(tsr_mixer_size(m, "mamba_d_state", "ssm_state_size", &b->dim, err));
    TSR_TRY(tsr_mixer_size(m, "mamba_d_conv", "conv_kernel", &b->taps, err));
    b->v_dim = tsr_forward_size(m->f, "mamba_d_head", tsr_forward_size(m->f, "mamba_head_dim", 0));
    if (b->v_dim == 0)
        b->v_dim = tsr_forward_size(m->f, "mamba_expand", 2) * m->f->hidden / b->heads;
    return b->v_dim > 0 && b->v_dim <= TSR_MAX_HEAD && b->heads % b->groups == 0
               ? TSR_OK
               : tsr_fail(err, TSR_E_SHAPE,
                          "%s/" TSR_CONFIG_NAME ": invalid Mamba sizes: %zu heads of %zu elements, %zu groups",
                          m->f->side->checkpoint->path, b->heads, b->v_dim, b->groups);
}

/* Computes mixed [n][heads][v_dim] by convolution and the scan. */
static tsr_status scan(mamba *b, tsr_held *mixed, tsr_err *err)
{
    const tsr_mixer *const m = &b->mixer;
    const size_t values = b->heads * b->v_dim, keys = b->groups * b->dim;
    const tsr_mixer_part parts[] = {{&b->v, values}, {&b->k, keys}, {&b->q, keys}};
    double *skip;
    TSR_TRY(tsr_mixer_convolve(m, "conv1d", parts, 3, b->taps, err));
    tsr_status status = tsr_mixer_elements(m, "D", b->heads, &skip, err);
    const tsr_op_recur args = {.kind = TSR_RECUR_SCAN,
                               .q = b->q.x,
                               .k = b->k.x,
                               .v = b->v.x,
                               .decay = b->step.x,
                               .skip = skip,
                               .heads = b->heads,
                               .k_heads = b->groups,
                               .dim = b->dim,
                               .v_dim = b->v_dim,
                               .decays = 1,
                               .least = m->f->least_step};
    if (status == TSR_OK)
        status = tsr_mixer_recur(m, args, mixed, err);
    free(skip);
    return status;
}

/* Applies the gate z, then the norm of each group. */
static tsr_status gate_and_norm(const mamba *b, const tsr_held *mixed, tsr_err *err)
{
    const tsr_forward *const f = b->mixer.f;
    const tsr_op_gate gate = tsr_mixer_gate(TSR_GATE_SILU, &b->z, mixed, b->heads * b->v_dim);
    TSR_TRY(f->ops->gate(f->ops, &gate, err));
    TSR_TRY(tsr_mixer_norm(&b->mixer, "norm", mixed, b->groups, b->heads * b->v_dim / b->groups, err));
    return tsr_forward_round(f, mixed->x, mixed->n, err);
}

tsr_status tsr_forward_mamba(tsr_forward *f, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                             tsr_held *out, tsr_err *err)
{
    mamba b = {.mixer = {f, layer, tokens, tsr_forward_module(f, layer)}};
    tsr_held all = {0}, mixed = {0}, *const held[] = {&b.z, &b.v, &b.k, &b.q, &b.step, &all, &mixed};
    tsr_status status = TSR_OK;
    TSR_TRY(read_sizes(&b, err));
    const size_t values = b.heads * b.v_dim, keys = b.groups * b.dim, rows = 2 * values + 2 * keys + b.heads;
    const tsr_mixer_part parts[] = {{&b.z, values}, {&b.v, values}, {&b.k, keys}, {&b.q, keys}, {&b.step, b.heads}};
    TSR_GOTO(tsr_mixer_project(&b.mixer, "in_proj", x, rows, f->hidden, &all, err));
    TSR_GOTO(tsr_mixer_deal(&b.mixer, &all, tokens->count, parts, 5, err));
    tsr_let_go(f, &all);
    TSR_GOTO(scan(&b, &mixed, err));
    TSR_GOTO(gate_and_norm(&b, &mixed, err));
    status = tsr_mixer_project(&b.mixer, "out_proj", mixed.x, f->hidden, values, out, err);
out:
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        tsr_let_go(f, held[i]);
    return status;
}
