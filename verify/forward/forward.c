/* Runs the embedding, the layers one after another, and the output head. */
#include "verify/forward/forward_parts.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"
#include "verify/values/weight_product.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The different tokens of a text: ids [count], and for each position of the text the place of its token among them. */
typedef struct distinct_tokens {
    uint64_t *ids;
    uint32_t *places;
    size_t count;
} distinct_tokens;

static tsr_status find_distinct(const tsr_tokens *tokens, distinct_tokens *d, tsr_err *err)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < tokens->count; i++)
        largest = tsr_max_u64(largest, tokens->ids[i]);
    uint32_t *const place_of = calloc((size_t)largest + 1, sizeof *place_of); /* from 1 */
    d->ids = malloc((tokens->count + 1) * sizeof *d->ids);
    d->places = malloc((tokens->count + 1) * sizeof *d->places);
    const bool made = place_of != NULL && d->ids != NULL && d->places != NULL;
    for (size_t i = 0; made && i < tokens->count; i++) {
        uint32_t *const place = &place_of[tokens->ids[i]];
        if (*place == 0) {
            d->ids[d->count] = tokens->ids[i];
            *place = (uint32_t)++d->count;
        }
        d->places[i] = *place - 1;
    }
    free(place_of);
    return made ? TSR_OK : tsr_out_of_memory(err, "for the embedding");
}

/* Rows of the embedding that are read at a time. */
typedef struct embedded {
    const tsr_forward *f;
    const tsr_weight *w;
    const uint64_t *ids;
    double *rows;
} embedded;

static tsr_status embed_token(void *context, size_t i, size_t worker, tsr_err *err)
{
    const embedded *const e = context;
    const tsr_piece row = {.row = e->ids[i], .rows = 1, .cols = e->f->hidden};
    (void)worker;
    return tsr_read_values(e->f->side->checkpoint, e->w, &row, e->rows + i * e->f->hidden, err);
}

/* Reads the embeddings of n tokens to x [n][hidden]. */
static tsr_status read_embeddings(const tsr_forward *f, const uint64_t *ids, size_t n, tsr_activation *x, tsr_err *err)
{
    enum { AT_A_TIME = 1024 };
    const tsr_weight *w;
    TSR_TRY(tsr_forward_find(f, &w, err, "%s%s.weight", f->root, f->embedding));
    TSR_TRY(tsr_linear_expect(f->side->checkpoint, w, f->vocabulary, f->hidden, err));
    double *const rows = malloc(((size_t)tsr_min_u64(AT_A_TIME, n) * f->hidden + 1) * sizeof *rows);
    tsr_status status = rows == NULL ? tsr_out_of_memory(err, "for the embedding") : TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < n; i += AT_A_TIME) {
        const size_t some = (size_t)tsr_min_u64(AT_A_TIME, n - i);
        embedded e = {f, w, ids + i, rows};
        status = tsr_parallel_for(some, f->ops->threads, f->ops->cancel, embed_token, &e, err);
        if (status == TSR_OK)
            status = f->ops->put(f->ops, tsr_at(f->ops, x, i * f->hidden), rows, some * f->hidden, err);
    }
    free(rows);
    return status;
}

tsr_status tsr_forward_embed(tsr_forward *f, const tsr_tokens *tokens, tsr_activation *x, tsr_err *err)
{
    const size_t size = tokens->count * f->hidden;
    const bool rounded = f->served && (f->traits & TSR_SCALED_EMBEDDING) != 0; /* a constant in BF16 */
    const double by = rounded ? tsr_round_bf16(f->embedding_scale) : f->embedding_scale;
    distinct_tokens d = {0};
    tsr_held rows = {0}, all = {0};
    tsr_status status = TSR_OK;
    TSR_GOTO(find_distinct(tokens, &d, err));
    TSR_GOTO(tsr_hold_unset(f, &rows, d.count * f->hidden, err));
    TSR_GOTO(read_embeddings(f, d.ids, d.count, rows.x, err));
    TSR_GOTO(tsr_hold_unset(f, &all, size, err));
    TSR_GOTO(f->ops->take(f->ops, all.x, rows.x, d.places, tokens->count, f->hidden, err));
    if (by != 1)
        TSR_GOTO(f->ops->scale(f->ops, all.x, size, by, err));
    TSR_GOTO(tsr_forward_round(f, all.x, size, err));
    for (size_t s = 0; s < f->streams; s++)
        TSR_GOTO(f->ops->place(f->ops, x, f->width, s * f->hidden, all.x, f->hidden, 0, tokens->count, f->hidden, err));
out:
    tsr_let_go(f, &rows);
    tsr_let_go(f, &all);
    free(d.ids);
    free(d.places);
    return status;
}

/* Copies x to y, or applies the norm `name` of a layer, if it has one. */
static tsr_status layer_norm(const tsr_forward *f, size_t layer, const char *name, const tsr_activation *x, size_t n,
                             tsr_activation *y, tsr_err *err)
{
    char part[TSR_MAX_NAME / 2], full[TSR_MAX_NAME];
    if (name == NULL)
        return x == y ? TSR_OK : f->ops->copy(f->ops, y, x, n * f->hidden, err);
    snprintf(part, sizeof part, "%s.weight", name);
    return tsr_forward_norm(f, tsr_forward_name(f, full, layer, part), x, n, f->hidden, y, err);
}

/* Adds the output of attention or MLP to x, after its norm and multiplier if the family has them. */
static tsr_status add_half(const tsr_forward *f, size_t layer, const char *norm, tsr_activation *x, tsr_held *half,
                           size_t n, tsr_err *err)
{
    TSR_TRY(layer_norm(f, layer, norm, half->x, n, half->x, err));
    if (f->residual_scale != 1) {
        TSR_TRY(f->ops->scale(f->ops, half->x, n * f->hidden, f->residual_scale, err));
        TSR_TRY(tsr_forward_round(f, half->x, n * f->hidden, err));
    }
    TSR_TRY(f->ops->add(f->ops, x, half->x, n, f->hidden, NULL, NULL, err));
    return tsr_forward_round(f, x, n * f->hidden, err);
}

/* Multiplies x by the scalar of a layer, if the family has one. */
static tsr_status scale_stream(const tsr_forward *f, size_t layer, tsr_activation *x, size_t n, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    double *scalar;
    if ((f->traits & TSR_LAYER_SCALAR) == 0)
        return TSR_OK;
    tsr_status status = tsr_forward_elements(f, tsr_forward_name(f, name, layer, "layer_scalar"), 1, &scalar, err);
    if (status == TSR_OK)
        status = f->ops->scale(f->ops, x, n * f->hidden, scalar[0], err);
    free(scalar);
    return status == TSR_OK ? tsr_forward_round(f, x, n * f->hidden, err) : status;
}

/* Runs the block of a layer that mixes tokens. */
static tsr_status mix(tsr_forward *f, size_t layer, const tsr_tokens *tokens, const tsr_activation *x, tsr_held *out,
                      tsr_err *err)
{
    static tsr_status (*const kBlocks[])(tsr_forward *, size_t, const tsr_tokens *, const tsr_activation *, tsr_held *,
                                         tsr_err *) = {
        [TSR_LAYER_FULL] = tsr_forward_attention,    [TSR_LAYER_WINDOW] = tsr_forward_attention,
        [TSR_LAYER_INDEXED] = tsr_forward_attention, [TSR_LAYER_DELTA] = tsr_forward_delta_net,
        [TSR_LAYER_KIMI] = tsr_forward_kimi_delta,   [TSR_LAYER_SCAN] = tsr_forward_mamba};
    if ((f->traits & TSR_STREAMS) != 0)
        return tsr_forward_compressed(f, layer, tokens, x, out, err);
    const bool full = f->kinds[layer] == TSR_LAYER_FULL || f->kinds[layer] == TSR_LAYER_INDEXED;
    const bool latent = full && (f->traits & TSR_LATENT) != 0;
    return (latent ? tsr_forward_latent : kBlocks[f->kinds[layer]])(f, layer, tokens, x, out, err);
}

/* Runs a half of a layer of several streams: the block that mixes tokens, or the MLP. */
static tsr_status run_half(tsr_forward *f, size_t layer, bool mixes, const tsr_tokens *tokens, tsr_activation *x,
                           uint32_t *choices, bool *routed, tsr_err *err)
{
    const size_t n = tokens->count;
    const char *const norm = mixes ? f->family->norms->attention_in : f->family->norms->mlp_in;
    tsr_held in = {0}, out = {0};
    tsr_hyper hyper = {0};
    tsr_status status = TSR_OK;
    TSR_GOTO(tsr_hold_unset(f, &in, n * f->hidden, err));
    TSR_GOTO(tsr_forward_join_streams(f, layer, mixes ? "attn" : "ffn", x, n, in.x, &hyper, err));
    TSR_GOTO(layer_norm(f, layer, norm, in.x, n, in.x, err));
    TSR_GOTO(mixes ? mix(f, layer, tokens, in.x, &out, err)
                   : tsr_forward_mlp(f, layer, tokens, in.x, in.x, &out, choices, routed, err));
    status = tsr_forward_split_streams(f, &hyper, out.x, n, x, err);
out:
    tsr_hyper_free(&hyper);
    tsr_let_go(f, &in);
    tsr_let_go(f, &out);
    return status;
}

tsr_status tsr_forward_layer(tsr_forward *f, size_t layer, const tsr_tokens *tokens, tsr_activation *x,
                             uint32_t *choices, bool *routed, tsr_err *err)
{
    const size_t n = tokens->count;
    const tsr_norm_names *const norms = f->family->norms;
    const bool alone = f->kinds[layer] == TSR_LAYER_MLP, mixed = (f->traits & TSR_ONE_BLOCK) != 0 && !alone;
    tsr_held normed = {0}, half = {0};
    tsr_status status = TSR_OK;
    f->noise = 0;
    *routed = false;
    tsr_ahead_begin(f, layer, n);
    TSR_TRY(tsr_forward_round(f, x, n * f->width, err));
    if (f->streams > 1) {
        TSR_TRY(run_half(f, layer, true, tokens, x, choices, routed, err));
        return run_half(f, layer, false, tokens, x, choices, routed, err);
    }
    TSR_GOTO(tsr_hold_unset(f, &normed, n * f->hidden, err));
    if (!alone) {
        TSR_GOTO(layer_norm(f, layer, norms->attention_in, x, n, normed.x, err));
        TSR_GOTO(mix(f, layer, tokens, normed.x, &half, err));
        TSR_GOTO(add_half(f, layer, norms->attention_out, x, &half, n, err));
        tsr_let_go(f, &half);
    }
    if (mixed)
        goto out;
    if ((f->traits & TSR_PARALLEL) == 0)
        TSR_GOTO(layer_norm(f, layer, norms->mlp_in, x, n, normed.x, err));
    TSR_GOTO(tsr_forward_mlp(f, layer, tokens, normed.x, x, &half, choices, routed, err));
    TSR_GOTO(add_half(f, layer, norms->mlp_out, x, &half, n, err));
    status = scale_stream(f, layer, x, n, err);
out:
    tsr_let_go(f, &normed);
    tsr_let_go(f, &half);
    return status;
}

tsr_status tsr_forward_logits(tsr_forward *f, const tsr_activation *x, size_t n, double *logits, tsr_err *err)
{
    const tsr_weight *w;
    tsr_held normed = {0}, out = {0};
    tsr_status status = TSR_OK;
    char name[TSR_MAX_NAME];
    double *bias = NULL;
    TSR_GOTO(tsr_hold(f, &normed, n * f->hidden, err));
    if (f->streams > 1)
        TSR_GOTO(tsr_forward_join_last(f, x, n, normed.x, err));
    snprintf(name, sizeof name, "%s%s.weight", f->root, f->norm);
    TSR_GOTO(tsr_forward_norm(f, name, f->streams > 1 ? normed.x : x, n, f->hidden, normed.x, err));
    /* Even if the head is tied to the embedding, the file may hold it. */
    TSR_GOTO(tsr_forward_find(f, &w, NULL, "%s", f->head));
    if (w == NULL || f->tied)
        TSR_GOTO(tsr_forward_find(f, &w, err, "%s%s.weight", f->root, f->embedding));
    snprintf(name, sizeof name, "%.*s.bias", (int)tsr_module_length(f->head), f->head);
    TSR_GOTO(tsr_forward_vector(f, name, f->vocabulary, false, &bias, err));
    TSR_GOTO(tsr_linear_expect(f->side->checkpoint, w, f->vocabulary, f->hidden, err));
    const tsr_layer_product p = {
        .weight = w, .bias = bias, .rows = f->vocabulary, .cols = f->hidden, .x = normed.x, .ld_x = f->hidden, .n = n};
    TSR_GOTO(tsr_forward_product(f, &p, &out, err));
    TSR_GOTO(f->ops->get(f->ops, logits, out.x, n * f->vocabulary, err));
    for (size_t i = 0; f->logits_divisor != 1 && i < n * f->vocabulary; i++)
        logits[i] /= f->logits_divisor;
    for (size_t i = 0; f->logit_cap != 0 && i < n * f->vocabulary; i++)
        logits[i] = f->logit_cap * tanh(logits[i] / f->logit_cap);
out:
    tsr_let_go(f, &normed);
    tsr_let_go(f, &out);
    free(bias);
    return status;
}
