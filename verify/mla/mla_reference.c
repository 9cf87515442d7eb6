/* Computes the stages of latent attention, optionally with a deliberate mistake. */
#include "verify/mla/mla_reference.h"

#include "common/parallel/parallel_for.h"
#include "verify/values/weight_product.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *tsr_mla_stage_name(tsr_mla_stage stage)
{
    static const char *const kNames[TSR_N_STAGES] = {"q_a",    "q_a_norm", "query",   "q_rope",        "kv_a",
                                                     "latent", "k_rope",   "scores",  "probabilities", "attention",
                                                     "output", "index_q",  "index_k", "index_weights", "index_scores"};
    return kNames[stage];
}

const char *tsr_mla_fault_text(tsr_mla_fault fault)
{
    static const char *const kTexts[TSR_N_MLA_FAULTS] = {
        NULL,
        "RoPE rotates pairs (i, i + rope / 2) instead of (2i, 2i + 1)",
        "RoPE is applied to the wrong half: the first elements instead of the last",
        "RoPE is not applied",
        "the softmax scale lacks YaRN's mscale",
        "the norm is skipped",
        "w_kc is transposed within each head",
        "w_vc is transposed within each head",
        "the indexer's RoPE rotates pairs (i, i + rope / 2) instead of (2i, 2i + 1)",
        "the indexer's RoPE rotates pairs (2i, 2i + 1) instead of (i, i + rope / 2)",
        "the indexer's RoPE is applied to the last elements instead of the first",
        "the bias of k_norm is missing",
        "k_norm is computed as an RMS norm, without the mean",
        "the indexer's weights lack the factor heads^-0.5",
        "negative scores of the indexer's heads count: ReLU is missing",
    };
    return kTexts[fault];
}

bool tsr_mla_fault_fits(tsr_mla_fault fault, tsr_mla_stage stage)
{
    switch (stage) {
    case TSR_STAGE_Q_ROPE:
    case TSR_STAGE_K_ROPE:
        return fault >= TSR_MLA_ROPE_HALVES && fault <= TSR_MLA_ROPE_NONE;
    case TSR_STAGE_Q_NORM:
    case TSR_STAGE_LATENT:
        return fault == TSR_MLA_NO_NORM;
    case TSR_STAGE_SCORES:
        return fault == TSR_MLA_NO_MSCALE || fault == TSR_MLA_KEYS_TRANSPOSED;
    case TSR_STAGE_ATTENTION:
        return fault == TSR_MLA_VALUES_TRANSPOSED;
    case TSR_STAGE_INDEX_K:
        if (fault == TSR_MLA_NO_NORM || fault == TSR_MLA_INDEX_NO_BIAS || fault == TSR_MLA_INDEX_NO_MEAN)
            return true;
        /* fall through */
    case TSR_STAGE_INDEX_Q:
        return fault == TSR_MLA_ROPE_NONE || (fault >= TSR_MLA_INDEX_HALVES && fault <= TSR_MLA_INDEX_LAST);
    case TSR_STAGE_INDEX_WEIGHTS:
        return fault == TSR_MLA_INDEX_NO_SCALE;
    case TSR_STAGE_INDEX_SCORES:
        return fault == TSR_MLA_INDEX_NO_RELU;
    default:
        return false;
    }
}

bool tsr_mla_has_stage(const tsr_mla_model *m, tsr_mla_stage stage)
{
    return stage >= TSR_STAGE_INDEX_Q ? m->index.heads > 0 : m->q_rank > 0 || stage > TSR_STAGE_Q_NORM;
}

size_t tsr_mla_stage_rows(const tsr_mla_batch *b, tsr_mla_stage stage)
{
    const bool of_tokens = (stage >= TSR_STAGE_KV_A && stage <= TSR_STAGE_K_ROPE) || stage == TSR_STAGE_INDEX_K;
    return of_tokens ? b->tokens : b->queries;
}

size_t tsr_mla_stage_cols(const tsr_mla_model *m, const tsr_mla_batch *b, tsr_mla_stage stage)
{
    const size_t cols[TSR_N_STAGES] = {m->q_rank,
                                       m->q_rank,
                                       m->heads * (m->nope + m->rope),
                                       m->heads * m->rope,
                                       m->rank + m->rope,
                                       m->rank,
                                       m->rope,
                                       m->heads * b->longest,
                                       m->heads * b->longest,
                                       m->heads * m->v,
                                       m->hidden,
                                       m->index.heads * m->index.dim,
                                       m->index.dim,
                                       m->index.heads,
                                       b->longest};
    return cols[stage];
}

/* The operands of one call. */
typedef struct work {
    const tsr_mla_model *m;
    const tsr_mla_batch *b;
    const tsr_mla_stages *in;
    tsr_mla_fault fault;
    bool absorbed;
    double *out;
} work;

static void norm(const work *w, const double *x, size_t ld, size_t rows, size_t n, const double *gain)
{
    for (size_t i = 0; i < rows; i++) {
        const double *const row = x + i * ld;
        if (w->fault == TSR_MLA_NO_NORM)
            memcpy(w->out + i * n, row, n * sizeof *row);
        else
            tsr_rms_norm(row, n, gain, w->m->eps, w->out + i * n);
    }
}

/* Rotates pairs of x in place: (i, i + pairs), or neighbours. */
static void turn(const tsr_rope *r, size_t position, bool halves, double *x)
{
    for (size_t i = 0; i < r->pairs; i++) {
        const size_t a = halves ? i : 2 * i, b = halves ? i + r->pairs : 2 * i + 1;
        const double angle = (double)position * r->frequency[i], u = x[a], v = x[b];
        const double c = cos(angle) * r->gain, s = sin(angle) * r->gain;
        x[a] = u * c - v * s;
        x[b] = u * s + v * c;
    }
}

/* Applies RoPE to one head's row: `skip` elements are left out, and the following ones are rotated. */
static void rope(const work *w, const double *row, size_t skip, size_t position, double *out)
{
    memcpy(out, w->fault == TSR_MLA_ROPE_FIRST ? row : row + skip, w->m->rope * sizeof *out);
    if (w->fault != TSR_MLA_ROPE_NONE)
        turn(&w->m->turn, position, w->fault == TSR_MLA_ROPE_HALVES, out);
}

static void rope_queries(const work *w)
{
    const tsr_mla_model *const m = w->m;
    for (size_t i = 0; i < w->b->queries * m->heads; i++)
        rope(w, w->in->of[TSR_STAGE_QUERY] + i * (m->nope + m->rope), m->nope,
             tsr_mla_tokens_seen(w->b, i / m->heads) - 1, w->out + i * m->rope);
}

static void rope_keys(const work *w)
{
    const tsr_mla_model *const m = w->m;
    for (size_t s = 0; s < w->b->sequences; s++) {
        for (size_t t = w->b->first[s]; t < w->b->first[s + 1]; t++)
            rope(w, w->in->of[TSR_STAGE_KV_A] + t * (m->rank + m->rope), m->rank, t - w->b->first[s],
                 w->out + t * m->rope);
    }
}

/* Computes out[cols] = x[rows] M, M [rows][cols]. */
static void times(const double *x, const double *matrix, size_t rows, size_t cols, double *out)
{
    memset(out, 0, cols * sizeof *out);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++)
            out[c] += x[r] * matrix[r * cols + c];
    }
}

/* Computes out[rows] = M x, M [rows][cols]. If `transposed`, M is stored as [cols][rows]. */
static void apply(const double *matrix, const double *x, size_t rows, size_t cols, bool transposed, double *out)
{
    if (transposed) {
        times(x, matrix, cols, rows, out);
        return;
    }
    for (size_t r = 0; r < rows; r++)
        out[r] = tsr_dot(matrix + r * cols, x, cols);
}

/* Computes the scores of one head for the queries [from, to) of one sequence. `keys` has room for the expanded keys,
 * [tokens][nope], and `latent_query` for kv_lora_rank elements. attend_head takes the same arguments. */
static void score_head(const work *w, size_t h, size_t from, size_t to, double *keys, double *latent_query)
{
    const tsr_mla_model *const m = w->m;
    const size_t s = w->b->seq_of[from], begin = w->b->first[s], size = m->nope * m->rank;
    const double *const latent = w->in->of[TSR_STAGE_LATENT], *const k_rope = w->in->of[TSR_STAGE_K_ROPE];
    const double scale = w->fault == TSR_MLA_NO_MSCALE ? m->plain_scale : m->softmax_scale;
    for (size_t t = begin; !w->absorbed && t < w->b->first[s + 1]; t++)
        apply(m->keys + h * size, latent + t * m->rank, m->nope, m->rank, w->fault == TSR_MLA_KEYS_TRANSPOSED,
              keys + (t - begin) * m->nope);
    for (size_t q = from; q < to; q++) {
        const double *const nope = w->in->of[TSR_STAGE_QUERY] + (q * m->heads + h) * (m->nope + m->rope);
        const double *const q_rope = w->in->of[TSR_STAGE_Q_ROPE] + (q * m->heads + h) * m->rope;
        double *const out = w->out + (q * m->heads + h) * w->b->longest;
        if (w->absorbed)
            times(nope, m->w_kc + h * size, m->nope, m->rank, latent_query);
        for (size_t t = begin; t <= w->b->token_of[q]; t++) {
            const double dot = w->absorbed ? tsr_dot(latent_query, latent + t * m->rank, m->rank)
                                           : tsr_dot(nope, keys + (t - begin) * m->nope, m->nope);
            out[t - begin] = scale * (dot + tsr_dot(q_rope, k_rope + t * m->rope, m->rope));
        }
    }
}

static void attend_head(const work *w, size_t h, size_t from, size_t to, double *values, double *latent_sum)
{
    const tsr_mla_model *const m = w->m;
    const size_t s = w->b->seq_of[from], begin = w->b->first[s], size = m->v * m->rank;
    const double *const latent = w->in->of[TSR_STAGE_LATENT];
    const size_t width = w->absorbed ? m->rank : m->v;
    for (size_t t = begin; !w->absorbed && t < w->b->first[s + 1]; t++)
        apply(m->values + h * size, latent + t * m->rank, m->v, m->rank, w->fault == TSR_MLA_VALUES_TRANSPOSED,
              values + (t - begin) * m->v);
    for (size_t q = from; q < to; q++) {
        const double *const p = w->in->of[TSR_STAGE_PROBABILITIES] + (q * m->heads + h) * w->b->longest;
        double *const out = w->out + (q * m->heads + h) * m->v, *const sum = w->absorbed ? latent_sum : out;
        times(p, w->absorbed ? latent + begin * m->rank : values, w->b->token_of[q] - begin + 1, width, sum);
        if (w->absorbed)
            apply(m->w_vc + h * size, sum, m->v, m->rank, false, out);
    }
}

typedef void head_fn(const work *w, size_t h, size_t from, size_t to, double *expanded, double *latent);

/* Work items: a sequence with queries, and a head. */
typedef struct turns {
    const work *w;
    head_fn *run;
    size_t *from;              /* [turns / heads + 1]: first query of each sequence */
    double *expanded, *latent; /* [workers][longest][width], [workers][rank] */
    size_t width;
} turns;

static tsr_status run_turn(void *context, size_t i, size_t worker, tsr_err *err)
{
    const turns *const t = context;
    const tsr_mla_model *const m = t->w->m;
    const size_t s = i / m->heads;
    (void)err;
    t->run(t->w, i % m->heads, t->from[s], t->from[s + 1], t->expanded + worker * t->w->b->longest * t->width,
           t->latent + worker * m->rank);
    return TSR_OK;
}

static tsr_status each_head(const work *w, size_t width, head_fn *run, tsr_err *err)
{
    const tsr_mla_batch *const b = w->b;
    const size_t most = b->sequences * w->m->heads, workers = tsr_parallel_workers(most, w->m->threads);
    turns t = {.w = w, .run = run, .width = width, .from = malloc((b->sequences + 1) * sizeof *t.from)};
    size_t n = 0;
    t.expanded = malloc((workers * b->longest * width + 1) * sizeof *t.expanded);
    t.latent = malloc(workers * w->m->rank * sizeof *t.latent);
    tsr_status status =
        t.from == NULL || t.expanded == NULL || t.latent == NULL ? tsr_out_of_memory(err, "for heads") : TSR_OK;
    for (size_t q = 0; status == TSR_OK && q < b->queries; q++) {
        if (q == 0 || b->seq_of[q] != b->seq_of[q - 1])
            t.from[n++] = q;
        t.from[n] = q + 1;
    }
    if (status == TSR_OK)
        status = tsr_parallel_for(n * w->m->heads, w->m->threads, NULL, run_turn, &t, err);
    free(t.from);
    free(t.expanded);
    free(t.latent);
    return status;
}

static void soften(const work *w)
{
    for (size_t i = 0; i < w->b->queries * w->m->heads; i++) {
        const size_t seen = tsr_mla_tokens_seen(w->b, i / w->m->heads);
        double *const p = w->out + i * w->b->longest;
        memcpy(p, w->in->of[TSR_STAGE_SCORES] + i * w->b->longest, seen * sizeof *p);
        tsr_soften(p, seen);
    }
}

/* ---- the indexer ---- */

/* Applies RoPE to the first elements of one head of the indexer. */
static void turn_index(const work *w, size_t position, double *x)
{
    const tsr_index_sizes *const s = &w->m->index;
    const bool other = w->fault == TSR_MLA_INDEX_HALVES || w->fault == TSR_MLA_INDEX_ADJACENT;
    const bool halves = other ? w->fault == TSR_MLA_INDEX_HALVES : !s->adjacent;
    if (w->fault != TSR_MLA_ROPE_NONE)
        turn(&s->rope, position, halves, w->fault == TSR_MLA_INDEX_LAST ? x + s->dim - 2 * s->rope.pairs : x);
}

static void turn_index_queries(const work *w)
{
    const tsr_index_sizes *const s = &w->m->index;
    for (size_t i = 0; i < w->b->queries * s->heads; i++)
        turn_index(w, tsr_mla_tokens_seen(w->b, i / s->heads) - 1, w->out + i * s->dim);
}

/* Applies LayerNorm and RoPE to the indexer's keys. */
static void finish_index_keys(const work *w)
{
    const size_t n = w->m->index.dim;
    for (size_t i = 0, s = 0; i < w->b->tokens; i++) {
        double *const x = w->out + i * n;
        double mean = 0;
        while (i >= w->b->first[s + 1])
            s++;
        for (size_t k = 0; k < n && w->fault != TSR_MLA_INDEX_NO_MEAN; k++)
            mean += x[k] / (double)n;
        for (size_t k = 0; k < n && w->fault != TSR_MLA_NO_NORM; k++)
            x[k] -= mean;
        if (w->fault != TSR_MLA_NO_NORM)
            tsr_rms_norm(x, n, w->m->index_gain, TSR_INDEX_EPS, x);
        for (size_t k = 0; k < n && w->fault != TSR_MLA_NO_NORM && w->fault != TSR_MLA_INDEX_NO_BIAS; k++)
            x[k] += w->m->index_bias[k];
        turn_index(w, i - w->b->first[s], x);
    }
}

static void scale_index_weights(const work *w)
{
    const double factor = w->fault == TSR_MLA_INDEX_NO_SCALE ? 1 : 1 / sqrt((double)w->m->index.heads);
    for (size_t i = 0; i < w->b->queries * w->m->index.heads; i++)
        w->out[i] *= factor;
}

static tsr_status score_index(void *context, size_t q, size_t worker, tsr_err *err)
{
    const work *const w = context;
    const tsr_index_sizes *const s = &w->m->index;
    const tsr_index_query x = {.q = w->in->of[TSR_STAGE_INDEX_Q] + q * s->heads * s->dim,
                               .weights = w->in->of[TSR_STAGE_INDEX_WEIGHTS] + q * s->heads,
                               .k = w->in->of[TSR_STAGE_INDEX_K] + w->b->first[w->b->seq_of[q]] * s->dim,
                               .heads = s->heads,
                               .dim = s->dim,
                               .keys = tsr_mla_tokens_seen(w->b, q),
                               .without_relu = w->fault == TSR_MLA_INDEX_NO_RELU};
    (void)worker, (void)err;
    tsr_index_score(&x, w->out + q * w->b->longest);
    for (size_t j = 0; j < x.keys; j++)
        w->out[q * w->b->longest + j] /= sqrt((double)s->dim);
    return TSR_OK;
}

/* Projects the hidden states of the queries. */
static tsr_status project_queries(const work *w, const tsr_weight *weight, tsr_err *err)
{
    const size_t n = w->m->hidden;
    double *const x = malloc((w->b->queries * n + 1) * sizeof *x);
    if (x == NULL)
        return tsr_out_of_memory(err, "for hidden states");
    for (size_t q = 0; q < w->b->queries; q++)
        memcpy(x + q * n, w->b->hidden + w->b->token_of[q] * n, n * sizeof *x);
    const tsr_status status = tsr_mla_project(w->m, weight, 0, n, x, n, w->b->queries, w->out, err);
    free(x);
    return status;
}

static tsr_status run_index(work *w, tsr_mla_stage stage, tsr_err *err)
{
    const tsr_mla_model *const m = w->m;
    switch (stage) {
    case TSR_STAGE_INDEX_Q:
        TSR_TRY(tsr_mla_project(m, m->index_q, 0, m->q_rank, w->in->of[TSR_STAGE_Q_NORM], m->q_rank, w->b->queries,
                                w->out, err));
        turn_index_queries(w);
        return TSR_OK;
    case TSR_STAGE_INDEX_K:
        TSR_TRY(tsr_mla_project(m, m->index_k, 0, m->hidden, w->b->hidden, m->hidden, w->b->tokens, w->out, err));
        finish_index_keys(w);
        return TSR_OK;
    case TSR_STAGE_INDEX_WEIGHTS:
        TSR_TRY(project_queries(w, m->index_weights, err));
        scale_index_weights(w);
        return TSR_OK;
    default:
        return tsr_parallel_for(w->b->queries, m->threads, NULL, score_index, w, err);
    }
}

static tsr_status run(work *w, tsr_mla_stage stage, tsr_err *err)
{
    const tsr_mla_model *const m = w->m;
    const tsr_mla_batch *const b = w->b;
    double *const *const in = w->in->of;
    switch (stage) {
    case TSR_STAGE_Q_A:
        return project_queries(w, m->q_a, err);
    case TSR_STAGE_Q_NORM:
        norm(w, in[TSR_STAGE_Q_A], m->q_rank, b->queries, m->q_rank, m->q_norm);
        return TSR_OK;
    case TSR_STAGE_QUERY:
        return m->q_rank == 0
                   ? project_queries(w, m->q, err)
                   : tsr_mla_project(m, m->q, 0, m->q_rank, in[TSR_STAGE_Q_NORM], m->q_rank, b->queries, w->out, err);
    case TSR_STAGE_Q_ROPE:
        rope_queries(w);
        return TSR_OK;
    case TSR_STAGE_KV_A:
        return tsr_mla_project(m, m->kv_a, 0, m->hidden, b->hidden, m->hidden, b->tokens, w->out, err);
    case TSR_STAGE_LATENT:
        norm(w, in[TSR_STAGE_KV_A], m->rank + m->rope, b->tokens, m->rank, m->kv_norm);
        return TSR_OK;
    case TSR_STAGE_K_ROPE:
        rope_keys(w);
        return TSR_OK;
    case TSR_STAGE_SCORES:
        return each_head(w, m->nope, score_head, err);
    case TSR_STAGE_PROBABILITIES:
        soften(w);
        return TSR_OK;
    case TSR_STAGE_ATTENTION:
        return each_head(w, m->v, attend_head, err);
    case TSR_STAGE_OUTPUT:
        return tsr_mla_project(m, m->o, 0, m->heads * m->v, in[TSR_STAGE_ATTENTION], m->heads * m->v, b->queries,
                               w->out, err);
    default:
        return run_index(w, stage, err);
    }
}

tsr_status tsr_mla_compute(const tsr_mla_model *m, const tsr_mla_batch *batch, const tsr_mla_stages *in,
                           tsr_mla_stage stage, tsr_mla_fault fault, bool absorbed, double **out, tsr_err *err)
{
    work w = {m, batch, in, fault, absorbed, NULL};
    *out = w.out = calloc(tsr_mla_stage_rows(batch, stage) * tsr_mla_stage_cols(m, batch, stage) + 1, sizeof **out);
    return w.out == NULL ? tsr_fail(err, TSR_E_NOMEM, "out of memory for %s", tsr_mla_stage_name(stage))
                         : run(&w, stage, err);
}

tsr_status tsr_mla_compute_all(const tsr_mla_model *m, const tsr_mla_batch *batch, bool absorbed, tsr_mla_stages *out,
                               tsr_err *err)
{
    for (tsr_mla_stage s = 0; s < TSR_N_STAGES; s++) {
        if (tsr_mla_has_stage(m, s))
            TSR_TRY(tsr_mla_compute(m, batch, out, s, TSR_MLA_RIGHT, absorbed, &out->of[s], err));
    }
    return TSR_OK;
}

tsr_status tsr_mla_batch_shape(tsr_mla_batch *b, const size_t *lengths, size_t sequences, size_t new_tokens,
                               size_t hidden, tsr_err *err)
{
    b->sequences = sequences;
    b->first = calloc(sequences + 1, sizeof *b->first);
    if (b->first == NULL)
        return tsr_out_of_memory(err, "for a batch");
    for (size_t s = 0; s < sequences; s++) {
        b->first[s + 1] = b->tokens += lengths[s];
        b->longest = lengths[s] > b->longest ? lengths[s] : b->longest;
    }
    b->token_of = malloc((b->tokens + 1) * sizeof *b->token_of);
    b->seq_of = malloc((b->tokens + 1) * sizeof *b->seq_of);
    b->hidden = malloc((b->tokens * hidden + 1) * sizeof *b->hidden);
    if (b->token_of == NULL || b->seq_of == NULL || b->hidden == NULL)
        return tsr_out_of_memory(err, "for a batch");
    for (size_t s = 0; s < sequences; s++) {
        for (size_t t = b->first[s]; t < b->first[s + 1]; t++) {
            if (b->first[s + 1] - t > new_tokens)
                continue;
            b->token_of[b->queries] = t;
            b->seq_of[b->queries++] = s;
        }
    }
    return TSR_OK;
}

void tsr_mla_stages_free(tsr_mla_stages *stages)
{
    for (size_t i = 0; i < TSR_N_STAGES; i++)
        free(stages->of[i]);
    *stages = (tsr_mla_stages){{NULL}};
}

void tsr_mla_batch_free(tsr_mla_batch *b)
{
    free(b->first);
    free(b->token_of);
    free(b->seq_of);
    free(b->hidden);
    *b = (tsr_mla_batch){0};
}
