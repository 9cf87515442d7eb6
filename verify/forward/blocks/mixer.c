/* Reads and applies the weights of recurrent blocks. */
#include "verify/forward/blocks/mixer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Writes the name of a part of the block. Returns name. */
static const char *name_of(const tsr_mixer *m, char name[TSR_MAX_NAME], const char *part)
{
    char local[TSR_MAX_NAME / 2];
    snprintf(local, sizeof local, "%s.%s", m->module, part);
    return tsr_forward_name(m->f, name, m->layer, local);
}

tsr_status tsr_mixer_size(const tsr_mixer *m, const char *key, const char *other, size_t *value, tsr_err *err)
{
    *value = tsr_forward_size(m->f, key, other == NULL ? 0 : tsr_forward_size(m->f, other, 0));
    return *value > 0 && *value <= TSR_MAX_HEAD
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": %s is missing or not from 1 to %d",
                          m->f->side->checkpoint->path, key, TSR_MAX_HEAD);
}

tsr_status tsr_mixer_project(const tsr_mixer *m, const char *part, const tsr_activation *x, size_t rows, size_t cols,
                             tsr_held *y, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    TSR_TRY(tsr_forward_linear(m->f, name_of(m, name, part), x, m->tokens->count, rows, cols, y, err));
    return tsr_forward_round(m->f, y->x, y->n, err);
}

tsr_status tsr_mixer_deal(const tsr_mixer *m, const tsr_held *x, size_t rows, const tsr_mixer_part *parts, size_t n,
                          tsr_err *err)
{
    tsr_ops *const ops = m->f->ops;
    for (size_t i = 0, from = 0; i < n; from += parts[i++].width) {
        const size_t width = parts[i].width;
        TSR_TRY(tsr_hold(m->f, parts[i].held, rows * width, err));
        TSR_TRY(ops->place(ops, parts[i].held->x, width, 0, x->x, x->n / rows, from, rows, width, err));
    }
    return TSR_OK;
}

tsr_status tsr_mixer_elements(const tsr_mixer *m, const char *part, size_t n, double **values, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    return tsr_forward_elements(m->f, name_of(m, name, part), n, values, err);
}

tsr_status tsr_mixer_recur(const tsr_mixer *m, tsr_op_recur args, tsr_held *out, tsr_err *err)
{
    const tsr_forward *const f = m->f;
    double *rate = NULL, *shift = NULL;
    tsr_status status;
    TSR_GOTO(tsr_mixer_elements(m, "A_log", args.heads, &rate, err));
    TSR_GOTO(tsr_mixer_elements(m, "dt_bias", args.heads * args.decays, &shift, err));
    TSR_GOTO(tsr_hold(f, out, m->tokens->count * args.heads * args.v_dim, err));
    for (size_t h = 0; h < args.heads; h++)
        rate[h] = exp(rate[h]);
    args.tokens = m->tokens;
    args.rate = rate;
    args.shift = shift;
    args.out = out->x;
    TSR_GOTO(f->ops->recur(f->ops, &args, err));
    status = tsr_forward_round(f, out->x, out->n, err);
out:
    free(rate);
    free(shift);
    return status;
}

tsr_op_gate tsr_mixer_gate(tsr_gate kind, const tsr_held *z, const tsr_held *x, size_t width)
{
    return (tsr_op_gate){
        .kind = kind, .gate = z->x, .up = x->x, .ld = width, .step = 1, .rows = x->n / width, .n = width, .y = x->x};
}

/* Replaces a part by its convolution. */
static tsr_status convolve(const tsr_mixer *m, const tsr_mixer_part *part, const double *weight, const double *bias,
                           size_t taps, tsr_err *err)
{
    tsr_held y = {0};
    const tsr_status status = tsr_hold(m->f, &y, part->held->n, err);
    const tsr_op_convolve args = {m->tokens, part->held->x, y.x, weight, bias, part->width, taps};
    if (status != TSR_OK)
        return status;
    tsr_status done = m->f->ops->convolve(m->f->ops, &args, err);
    if (done == TSR_OK)
        done = tsr_forward_round(m->f, y.x, y.n, err);
    tsr_let_go(m->f, part->held);
    *part->held = y;
    return done;
}

tsr_status tsr_mixer_convolve(const tsr_mixer *m, const char *name, const tsr_mixer_part *parts, size_t n, size_t taps,
                              tsr_err *err)
{
    char part[TSR_MAX_NAME / 2], full[TSR_MAX_NAME];
    double *weight = NULL, *bias = NULL;
    size_t channels = 0, from = 0;
    for (size_t i = 0; i < n; i++)
        channels += parts[i].width;
    snprintf(part, sizeof part, "%s.weight", name);
    tsr_status status = tsr_mixer_elements(m, part, channels * taps, &weight, err);
    snprintf(part, sizeof part, "%s.bias", name);
    if (status == TSR_OK)
        status = tsr_forward_vector(m->f, name_of(m, full, part), channels, false, &bias, err);
    for (size_t i = 0; status == TSR_OK && i < n; from += parts[i++].width)
        status = convolve(m, &parts[i], weight + from * taps, bias == NULL ? NULL : bias + from, taps, err);
    free(weight);
    free(bias);
    return status;
}

tsr_status tsr_mixer_norm(const tsr_mixer *m, const char *name, const tsr_held *x, size_t groups, size_t width,
                          tsr_err *err)
{
    const tsr_forward *const f = m->f;
    const size_t ld = groups * width;
    char part[TSR_MAX_NAME / 2];
    double *gain = NULL;
    snprintf(part, sizeof part, "%s.weight", name);
    tsr_status status = tsr_mixer_elements(m, part, ld, &gain, err);
    for (size_t g = 0; status == TSR_OK && g < groups; g++) {
        tsr_activation *const first = tsr_at(f->ops, x->x, g * width);
        status = f->ops->norm(f->ops, first, ld, x->n / ld, width, gain + g * width, f->eps, first, ld, err);
    }
    free(gain);
    return status;
}
