/* Computes Kimi's delta attention: a delta net that decays each row of its state by itself, with gates of low rank. */
#include "verify/forward/blocks/mixer.h"

/* A layer. Columns of each token in activations: q, k, v, decay and z [heads][dim], beta [heads]. */
typedef struct kimi_delta {
    tsr_mixer mixer;
    size_t heads, dim, taps;
    tsr_held q, k, v, z, beta, decay;
} kimi_delta;

static tsr_status read_sizes(kimi_delta *d, tsr_err *err)
{
    const tsr_mixer *const m = &d->mixer;
    TSR_TRY(tsr_mixer_size(m, "linear_attn_config.num_heads", "linear_num_heads", &d->heads, err));
    TSR_TRY(tsr_mixer_size(m, "linear_attn_config.head_dim", "linear_head_dim", &d->dim, err));
    return tsr_mixer_size(m, "linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim", &d->taps, err);
}

/* Projects x to q, k or v, and applies its convolution. */
static tsr_status project(const kimi_delta *d, const char *weight, const char *filter, const tsr_activation *x,
                          tsr_held *y, tsr_err *err)
{
    const size_t width = d->heads * d->dim;
    const tsr_mixer_part part = {y, width};
    TSR_TRY(tsr_mixer_project(&d->mixer, weight, x, width, d->mixer.f->hidden, y, err));
    return tsr_mixer_convolve(&d->mixer, filter, &part, 1, d->taps, err);
}

/* Computes y [n][heads][dim] with a pair of weights. */
static tsr_status project_twice(const kimi_delta *d, const char *first, const char *second, const tsr_activation *x,
                                tsr_held *y, tsr_err *err)
{
    tsr_held low = {0};
    tsr_status status = tsr_mixer_project(&d->mixer, first, x, d->dim, d->mixer.f->hidden, &low, err);
    if (status == TSR_OK)
        status = tsr_mixer_project(&d->mixer, second, low.x, d->heads * d->dim, d->dim, y, err);
    tsr_let_go(d->mixer.f, &low);
    return status;
}

static tsr_status project_all(kimi_delta *d, const tsr_activation *x, tsr_err *err)
{
    TSR_TRY(project(d, "q_proj", "q_conv1d", x, &d->q, err));
    TSR_TRY(project(d, "k_proj", "k_conv1d", x, &d->k, err));
    TSR_TRY(project(d, "v_proj", "v_conv1d", x, &d->v, err));
    TSR_TRY(project_twice(d, "f_a_proj", "f_b_proj", x, &d->decay, err));
    TSR_TRY(tsr_mixer_project(&d->mixer, "b_proj", x, d->heads, d->mixer.f->hidden, &d->beta, err));
    return project_twice(d, "g_a_proj", "g_b_proj", x, &d->z, err);
}

tsr_status tsr_forward_kimi_delta(tsr_forward *f, size_t layer, const tsr_tokens *tokens, const tsr_activation *x,
                                  tsr_held *out, tsr_err *err)
{
    kimi_delta d = {.mixer = {f, layer, tokens, tsr_forward_module(f, layer)}};
    tsr_held mixed = {0}, *const held[] = {&d.q, &d.k, &d.v, &d.z, &d.beta, &d.decay, &mixed};
    tsr_status status = TSR_OK;
    TSR_TRY(read_sizes(&d, err));
    TSR_GOTO(project_all(&d, x, err));
    const tsr_op_recur args = {.kind = TSR_RECUR_DELTA,
                               .q = d.q.x,
                               .k = d.k.x,
                               .v = d.v.x,
                               .decay = d.decay.x,
                               .beta = d.beta.x,
                               .heads = d.heads,
                               .k_heads = d.heads,
                               .dim = d.dim,
                               .v_dim = d.dim,
                               .decays = d.dim};
    TSR_GOTO(tsr_mixer_recur(&d.mixer, args, &mixed, err));
    TSR_GOTO(tsr_mixer_norm(&d.mixer, "o_norm", &mixed, 1, d.dim, err));
    const tsr_op_gate gate = tsr_mixer_gate(TSR_GATE_SIGMOID, &d.z, &mixed, d.heads * d.dim);
    TSR_GOTO(tsr_forward_gate(f, &gate, err));
    status = tsr_mixer_project(&d.mixer, "o_proj", mixed.x, f->hidden, d.heads * d.dim, out, err);
out:
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        tsr_let_go(f, held[i]);
    return status;
}
