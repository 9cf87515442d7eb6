/* Attention of a layer: grouped-query here, latent by verify/mla/mla_reference.h. */
#include "verify/forward/forward_parts.h"

#include "common/parallel_for.h"
#include "verify/mla/mla_reference.h"
#include "verify/weights/weight_product.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- grouped-query ---- */

typedef struct heads {
    const tsr_forward *f;
    const tsr_tokens *tokens;
    double *q, *k, *v; /* [count][heads][head_dim], [count][kv_heads][head_dim] twice */
    double *out;       /* as q */
    double *scratch;   /* [workers][longest] */
} heads;

/* Halves of a head, turned against each other: (x[i], x[i + d / 2]) by position * frequency[i]. */
static void turn(const tsr_rope *rope, double *x, size_t position)
{
    for (size_t i = 0; i < rope->pairs; i++) {
        const double angle = (double)position * rope->frequency[i], a = x[i], b = x[i + rope->pairs];
        const double c = cos(angle) * rope->gain, s = sin(angle) * rope->gain;
        x[i] = a * c - b * s;
        x[i + rope->pairs] = b * c + a * s;
    }
}

/* q or k: `n` heads of every token get their norm, where the checkpoint has one, and their position. */
static tsr_status prepare(const heads *h, size_t layer, const char *norm, double *x, size_t n, tsr_err *err)
{
    const tsr_forward *const f = h->f;
    const size_t d = f->head_dim;
    char name[TSR_MAX_NAME];
    double *gain;
    snprintf(name, sizeof name, "model.layers.%zu.self_attn.%s.weight", layer, norm);
    const tsr_status status = tsr_forward_vector(f, name, d, false, &gain, err);
    if (status == TSR_OK && gain != NULL)
        tsr_forward_norm(f, x, h->tokens->count * n, d, gain, x);
    free(gain);
    for (size_t s = 0; status == TSR_OK && s < h->tokens->sequences; s++) {
        const size_t begin = h->tokens->first[s];
        for (size_t i = begin * n; i < h->tokens->first[s + 1] * n; i++)
            turn(&f->rope, x + i * d, i / n - begin);
    }
    return status;
}

/* One query of one head, over the tokens from `begin` to its own. */
static void attend(const heads *h, size_t begin, size_t token, size_t head, double *p)
{
    const tsr_forward *const f = h->f;
    const size_t d = f->head_dim, seen = token - begin + 1, ld = f->kv_heads * d;
    const size_t shared = head / (f->heads / f->kv_heads);
    const double *const q = h->q + (token * f->heads + head) * d;
    const double *const k = h->k + begin * ld + shared * d, *const v = h->v + begin * ld + shared * d;
    double *const out = h->out + (token * f->heads + head) * d;
    for (size_t t = 0; t < seen; t++)
        p[t] = tsr_dot(q, k + t * ld, d) / sqrt((double)d);
    tsr_soften(p, seen);
    for (size_t t = 0; t < seen; t++) {
        for (size_t i = 0; i < d; i++)
            out[i] += p[t] * v[t * ld + i];
    }
}

/* Turns are sequences by heads. */
static tsr_status attend_turn(void *context, size_t i, size_t worker, tsr_err *err)
{
    const heads *const h = context;
    const size_t s = i / h->f->heads;
    (void)err;
    for (size_t token = h->tokens->first[s]; token < h->tokens->first[s + 1]; token++)
        attend(h, h->tokens->first[s], token, i % h->f->heads, h->scratch + worker * h->tokens->longest);
    return TSR_OK;
}

static tsr_status attend_all(heads *h, tsr_err *err)
{
    const tsr_tokens *const t = h->tokens;
    const size_t turns = t->sequences * h->f->heads, workers = tsr_parallel_workers(turns, h->f->threads);
    h->scratch = malloc(workers * t->longest * sizeof *h->scratch);
    h->out = calloc(t->count * h->f->heads * h->f->head_dim + 1, sizeof *h->out);
    const tsr_status status = h->scratch == NULL || h->out == NULL
                                  ? tsr_out_of_memory(err, "for attention")
                                  : tsr_parallel_for(turns, h->f->threads, h->f->cancel, attend_turn, h, err);
    free(h->scratch);
    return status;
}

static void add(double *y, const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static tsr_status grouped(const tsr_forward *f, size_t layer, const tsr_tokens *tokens, const double *x, double *y,
                          tsr_err *err)
{
    heads h = {.f = f, .tokens = tokens};
    const struct {
        const char *name;
        size_t heads;
        double **out;
    } kInputs[] = {{"q_proj", f->heads, &h.q}, {"k_proj", f->kv_heads, &h.k}, {"v_proj", f->kv_heads, &h.v}};
    const size_t n = tokens->count, width = f->heads * f->head_dim;
    char module[TSR_MAX_NAME];
    double *projected = NULL;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < 3; i++) {
        snprintf(module, sizeof module, "model.layers.%zu.self_attn.%s", layer, kInputs[i].name);
        TSR_GOTO(tsr_forward_linear(f, module, x, n, kInputs[i].heads * f->head_dim, f->hidden, kInputs[i].out, err));
    }
    TSR_GOTO(prepare(&h, layer, "q_norm", h.q, f->heads, err));
    TSR_GOTO(prepare(&h, layer, "k_norm", h.k, f->kv_heads, err));
    TSR_GOTO(attend_all(&h, err));
    snprintf(module, sizeof module, "model.layers.%zu.self_attn.o_proj", layer);
    TSR_GOTO(tsr_forward_linear(f, module, h.out, n, f->hidden, width, &projected, err));
    add(y, projected, n * f->hidden);
out:
    free(h.q);
    free(h.k);
    free(h.v);
    free(h.out);
    free(projected);
    return status;
}

/* ---- latent ---- */

/* All tokens are queries. */
static tsr_status make_batch(tsr_mla_batch *b, const tsr_tokens *tokens, double *x, tsr_err *err)
{
    const size_t n = tokens->count;
    *b = (tsr_mla_batch){.sequences = tokens->sequences, .tokens = n, .queries = n, .longest = tokens->longest};
    b->first = tokens->first;
    b->hidden = x;
    b->token_of = malloc((n + 1) * sizeof *b->token_of);
    b->seq_of = malloc((n + 1) * sizeof *b->seq_of);
    if (b->token_of == NULL || b->seq_of == NULL)
        return tsr_out_of_memory(err, "for a batch");
    for (size_t s = 0; s < tokens->sequences; s++) {
        for (size_t t = tokens->first[s]; t < tokens->first[s + 1]; t++) {
            b->token_of[t] = t;
            b->seq_of[t] = s;
        }
    }
    return TSR_OK;
}

static tsr_status latent(const tsr_forward *f, size_t layer, const tsr_tokens *tokens, double *x, double *y,
                         tsr_err *err)
{
    tsr_mla_model model;
    tsr_mla_batch batch = {0};
    tsr_mla_stages stages = {{NULL}};
    tsr_status status;
    TSR_GOTO(tsr_mla_model_open(&model, f->side, layer, err));
    model.threads = f->threads;
    TSR_GOTO(make_batch(&batch, tokens, x, err));
    TSR_GOTO(tsr_mla_compute_all(&model, &batch, model.has_parts, &stages, err));
    add(y, stages.of[TSR_STAGE_OUTPUT], tokens->count * f->hidden);
out:
    tsr_mla_stages_free(&stages);
    free(batch.token_of);
    free(batch.seq_of);
    tsr_mla_model_close(&model);
    return status;
}

tsr_status tsr_forward_attention(const tsr_forward *f, size_t layer, const tsr_tokens *tokens, double *x, double *y,
                                 tsr_err *err)
{
    return f->latent ? latent(f, layer, tokens, x, y, err) : grouped(f, layer, tokens, x, y, err);
}
