/* Computes the stages of latent attention, optionally with a deliberate mistake. */
#include "verify/mla/mla_reference.h"

#include "common/parallel/parallel_for.h"
#include "verify/values/weight_product.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *tsr_mla_stage_name(tsr_mla_stage stage)
{
    static const char *const kNames[TSR_N_STAGES] = {"q_a",           "q_a_norm",  "query",  "q_rope",
                                                     "kv_a",          "latent",    "k_rope", "scores",
                                                     "probabilities", "attention", "output"};
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
    default:
        return false;
    }
}

bool tsr_mla_has_stage(const tsr_mla_model *m, tsr_mla_stage stage)
{
    return m->q_rank > 0 || stage > TSR_STAGE_Q_NORM;
}

size_t tsr_mla_stage_rows(const tsr_mla_batch *b, tsr_mla_stage stage)
{
    return stage >= TSR_STAGE_KV_A && stage <= TSR_STAGE_K_ROPE ? b->tokens : b->queries;
}

size_t tsr_mla_stage_cols(const tsr_mla_model *m, const tsr_mla_batch *b, tsr_mla_stage stage)
{
    const size_t cols[TSR_N_STAGES] = {
        m->q_rank, m->q_rank, m->heads * (m->nope + m->rope), m->heads * m->rope,    m->rank + m->rope,
        m->rank,   m->rope,   m->heads * b->longest,          m->heads * b->longest, m->heads * m->v,
        m->hidden};
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

/* Applies RoPE to one head's row: `skip` elements are left out, and the following ones are rotated. */
static void rope(const work *w, const double *row, size_t skip, size_t position, double *out)
{
    const size_t half = w->m->rope / 2;
    const double *const x = w->fault == TSR_MLA_ROPE_FIRST ? row : row + skip;
    if (w->fault == TSR_MLA_ROPE_NONE) {
        memcpy(out, x, 2 * half * sizeof *out);
        return;
    }
    for (size_t i = 0; i < half; i++) {
        const bool halves = w->fault == TSR_MLA_ROPE_HALVES;
        const size_t a = halves ? i : 2 * i, b = halves ? i + half : 2 * i + 1;
        const double angle = (double)position * w->m->turn.frequency[i];
        const double c = cos(angle) * w->m->turn.gain, s = sin(angle) * w->m->turn.gain;
        out[a] = x[a] * c - x[b] * s;
        out[b] = x[a] * s + x[b] * c;
    }
}

size_t tsr_mla_tokens_seen(const tsr_mla_batch *b, size_t query)
{
    return b->token_of[query] + 1 - b->first[b->seq_of[query]];
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

static tsr_status run(const work *w, tsr_mla_stage stage, tsr_err *err)
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
    default:
        return tsr_mla_project(m, m->o, 0, m->heads * m->v, in[TSR_STAGE_ATTENTION], m->heads * m->v, b->queries,
                               w->out, err);
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
