/* Builds operands of prefill, computes exact results, and judges each kernel. */
#include "verify/mla/mla_expanded.h"

#include "common/float_bits.h"
#include "common/parallel/parallel_for.h"
#include "kernels/cpu/causal_attention.h"
#include "verify/evidence/kernel_tally.h"
#include "verify/mla/attention_oracle.h"
#include "verify/values/weight_product.h"
#include "verify/values/weight_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 128 }; /* tokens per step of the tensor core kernel */

typedef struct work {
    const tsr_mla_subject *s;
    size_t width;              /* nope + rope */
    bool steep;                /* scores: tsr_attention_steepen */
    uint16_t *q, *kv, *k_rope; /* [queries][heads][width], [tokens][heads][nope + v], [tokens][rope] */
    int32_t *first_query, *first_token;
    float *keys, *values;  /* as kernels read them: */
    float *out;            /* [queries][heads][v] */
    double *exact;         /* [queries][heads][v] */
    double *mass, *square; /* as `exact`; see verify/mla/attention_oracle.h */
    double *jitter;        /* as `exact` */
    double *largest;       /* [queries][heads] */
    double *got;           /* as `out` */
    tsr_arena arena;
} work;

static tsr_status take(work *w, void *to, size_t bytes, tsr_err *err)
{
    void *const p = tsr_arena_alloc(&w->arena, bytes + 64);
    memcpy(to, &p, sizeof p);
    return p == NULL ? tsr_out_of_memory(err, "for kernels of prefill") : TSR_OK;
}

static tsr_status open_work(work *w, tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const tsr_mla_batch *const b = w->s->batch;
    const size_t rows = b->queries * m->heads, results = rows * m->v, tokens = b->tokens * m->heads;
    w->width = m->nope + m->rope;
    TSR_TRY(take(w, &w->q, rows * w->width * sizeof *w->q, err));
    TSR_TRY(take(w, &w->kv, tokens * (m->nope + m->v) * sizeof *w->kv, err));
    TSR_TRY(take(w, &w->k_rope, b->tokens * m->rope * sizeof *w->k_rope, err));
    TSR_TRY(take(w, &w->first_query, (b->sequences + 1) * sizeof *w->first_query, err));
    TSR_TRY(take(w, &w->first_token, (b->sequences + 1) * sizeof *w->first_token, err));
    TSR_TRY(take(w, &w->keys, tokens * w->width * sizeof *w->keys, err));
    TSR_TRY(take(w, &w->values, tokens * m->v * sizeof *w->values, err));
    TSR_TRY(take(w, &w->out, results * sizeof *w->out, err));
    TSR_TRY(take(w, &w->exact, results * sizeof *w->exact, err));
    TSR_TRY(take(w, &w->mass, results * sizeof *w->mass, err));
    TSR_TRY(take(w, &w->square, results * sizeof *w->square, err));
    TSR_TRY(take(w, &w->jitter, results * sizeof *w->jitter, err));
    TSR_TRY(take(w, &w->largest, rows * sizeof *w->largest, err));
    return take(w, &w->got, results * sizeof *w->got, err);
}

/* ---- operands ---- */

/* Rounds x to BF16 and returns that value as a float. */
static float narrow(double x, uint16_t *to)
{
    *to = tsr_bf16_from_f64(x);
    return tsr_f32_from_bf16(*to);
}

/* Computes keys and values of token i / heads and head i % heads. */
static tsr_status expand_one(void *context, size_t i, size_t worker, tsr_err *err)
{
    const work *const w = context;
    const tsr_mla_model *const m = w->s->model;
    const size_t t = i / m->heads, h = i % m->heads;
    const double *const latent = w->s->stages->of[TSR_STAGE_LATENT] + t * m->rank;
    const double *const k_rope = w->s->stages->of[TSR_STAGE_K_ROPE] + t * m->rope;
    uint16_t *const kv = w->kv + i * (m->nope + m->v);
    (void)worker, (void)err;
    for (size_t k = 0; k < m->nope; k++)
        w->keys[i * w->width + k] = narrow(tsr_dot(m->keys + (h * m->nope + k) * m->rank, latent, m->rank), kv + k);
    for (size_t k = 0; k < m->rope; k++) /* equal for all heads */
        w->keys[i * w->width + m->nope + k] = narrow(k_rope[k], h == 0 ? w->k_rope + t * m->rope + k : &(uint16_t){0});
    for (size_t k = 0; k < m->v; k++)
        w->values[i * m->v + k] =
            narrow(tsr_dot(m->values + (h * m->v + k) * m->rank, latent, m->rank), kv + m->nope + k);
    return TSR_OK;
}

static void fill_queries(work *w)
{
    const tsr_mla_model *const m = w->s->model;
    const tsr_mla_batch *const b = w->s->batch;
    for (size_t i = 0; i < b->queries * m->heads; i++) {
        const double *const query = w->s->stages->of[TSR_STAGE_QUERY] + i * w->width;
        for (size_t k = 0; k < w->width; k++)
            narrow(k < m->nope ? query[k] : w->s->stages->of[TSR_STAGE_Q_ROPE][i * m->rope + k - m->nope],
                   w->q + i * w->width + k);
    }
    for (size_t s = 0, q = 0; s <= b->sequences; s++) {
        w->first_query[s] = (int32_t)q;
        w->first_token[s] = (int32_t)b->first[s];
        while (q < b->queries && b->seq_of[q] == s)
            q++;
    }
}

/* ---- exact ---- */

static tsr_attended tokens_of(const work *w, size_t row)
{
    const tsr_mla_model *const m = w->s->model;
    const size_t query = row / m->heads, h = row % m->heads;
    const size_t at = w->s->batch->first[w->s->batch->seq_of[query]] * m->heads + h;
    return (tsr_attended){.keys = w->keys + at * w->width,
                          .values = w->values + at * m->v,
                          .ld_keys = m->heads * w->width,
                          .ld_values = m->heads * m->v,
                          .width = w->width,
                          .columns = m->v,
                          .n = tsr_mla_tokens_seen(w->s->batch, query),
                          .scale = (double)(float)m->softmax_scale};
}

static tsr_attention_exact exact_of(const work *w, size_t row)
{
    const size_t at = row * w->s->model->v;
    return (tsr_attention_exact){w->exact + at, w->mass + at, w->square + at, w->jitter + at, w->largest[row]};
}

static tsr_status solve_one(void *context, size_t row, size_t worker, tsr_err *err)
{
    const work *const w = context;
    const tsr_attended tokens = tokens_of(w, row);
    tsr_attention_exact exact = exact_of(w, row);
    uint16_t *const q = w->q + row * w->width;
    double *const scratch = malloc((2 * tokens.n + w->width) * sizeof *scratch);
    (void)worker;
    if (scratch == NULL)
        return tsr_out_of_memory(err, "for kernels of prefill");
    if (w->steep)
        tsr_attention_steepen(&tokens, q, scratch);
    tsr_attention_solve(&tokens, q, scratch, &exact);
    w->largest[row] = exact.largest;
    free(scratch);
    return TSR_OK;
}

/* ---- judging ---- */

static tsr_status judge_operands(work *w, tsr_evidence *evidence, tsr_err *err)
{
    const size_t cols = w->s->model->heads * w->s->model->v;
    tsr_judgement j = {.subject = w->s->name,
                       .what = "BF16 keys, values and queries",
                       .kind = TSR_ERROR_QUANTIZATION,
                       .of_bound = -1,
                       .of_expected = -1};
    tsr_mla_judge_sqnr(&j, w->s->stages->of[TSR_STAGE_ATTENTION], w->exact, w->s->batch->queries, cols, w->s->min_sqnr);
    return tsr_evidence_add(evidence, &j, err);
}

static tsr_status run_kernel(work *w, const tsr_device_prefill *kernel, tsr_evidence *evidence, double *since,
                             tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const tsr_mla_batch *const b = w->s->batch;
    const size_t rows = b->queries * m->heads;
    const tsr_attention_rounding rounding = {kernel->tensor_core, false, BLOCK};
    const tsr_causal_attention args = {.q = w->q,
                                       .kv = w->kv,
                                       .k_rope = w->k_rope,
                                       .cu_seqlens_q = w->first_query,
                                       .cu_seqlens_k = w->first_token,
                                       .out = w->out,
                                       .batch = b->sequences,
                                       .heads = m->heads,
                                       .tokens_q = b->queries,
                                       .tokens_k = b->tokens,
                                       .nope = m->nope,
                                       .rope = m->rope,
                                       .value = m->v,
                                       .scale = (float)m->softmax_scale};
    double seconds = 0;
    memset(w->out, 0xFF, rows * m->v * sizeof *w->out);
    tsr_err why = {0};
    const tsr_status status = kernel->run(kernel, &args, &seconds, &why);
    tsr_lap(evidence, TSR_PHASE_KERNELS, since);
    if (status == TSR_E_UNSUPPORTED)
        return w->steep ? TSR_OK : tsr_evidence_skip(evidence, w->s->name, why.msg, err);
    if (status != TSR_OK)
        return tsr_fail_with(err, status, &why);
    char what[96];
    snprintf(what, sizeof what, "%s%s", kernel->name, w->steep ? ", steep scores" : "");
    const tsr_tally_of of = {.subject = w->s->name,
                             .what = what,
                             .seconds = seconds,
                             .rows = rows,
                             .cols = m->v,
                             .out = TSR_OUT_F32,
                             .shared = TSR_SHARE_ROWS,
                             .systematic = tsr_attention_slope(&rounding)};
    tsr_kernel_tally t;
    TSR_TRY(tsr_kernel_tally_begin(&t, &of, err));
    for (size_t row = 0; row < rows; row++) {
        const tsr_attended tokens = tokens_of(w, row);
        const tsr_attention_exact exact = exact_of(w, row);
        for (size_t k = 0; k < m->v; k++) {
            w->got[row * m->v + k] = (double)w->out[row * m->v + k];
            tsr_kernel_tally_count(&t, row, k, exact.exact[k], w->got[row * m->v + k],
                                   tsr_attention_bound(&rounding, &tokens, &exact, k),
                                   tsr_attention_variance(&rounding, &tokens, &exact, k));
        }
    }
    tsr_judge(&t.judgement, w->exact, w->got, b->queries, m->heads * m->v, NULL, NULL);
    tsr_lap(evidence, TSR_PHASE_JUDGE, since);
    return tsr_kernel_tally_end(&t, &w->s->options->limits, "above the bound of its accumulation",
                                "errors above those of its accumulation", evidence, err);
}

static tsr_status check_all(work *w, tsr_evidence *evidence, double *since, tsr_err *err)
{
    const tsr_kernel_options *const o = w->s->options;
    const size_t heads = w->s->model->heads;
    TSR_TRY(open_work(w, err));
    TSR_TRY(tsr_parallel_for(w->s->batch->tokens * heads, o->run.threads, o->run.cancel, expand_one, w, err));
    fill_queries(w);
    tsr_lap(evidence, TSR_PHASE_QUANTIZE, since);
    for (int pass = 0; pass < 2; pass++) {
        w->steep = pass == 1;
        TSR_TRY(tsr_parallel_for(w->s->batch->queries * heads, o->run.threads, o->run.cancel, solve_one, w, err));
        tsr_lap(evidence, TSR_PHASE_ORACLE, since);
        if (!w->steep)
            TSR_TRY(judge_operands(w, evidence, err));
        for (size_t i = 0; i < o->device->n_prefills; i++)
            TSR_TRY(run_kernel(w, &o->device->prefills[i], evidence, since, err));
    }
    return TSR_OK;
}

tsr_status tsr_mla_check_expanded(const tsr_mla_subject *subject, tsr_evidence *evidence, double *since, tsr_err *err)
{
    work w = {.s = subject};
    const tsr_status status = subject->model->folded ? TSR_OK : check_all(&w, evidence, since, err);
    tsr_arena_free(&w.arena);
    return status;
}
