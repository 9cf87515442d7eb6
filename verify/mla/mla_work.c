/* Prepares operands and exact results for MLA kernels, and judges decode results. */
#include "verify/mla/mla_work.h"

#include "common/float_bits.h"
#include "common/parallel/parallel_for.h"
#include "verify/mla/sparse/sparse_lists.h"

#include <stdlib.h>
#include <string.h>

tsr_status tsr_mla_take(tsr_mla_work *w, void *to, size_t bytes, tsr_err *err)
{
    void *const p = tsr_arena_alloc(&w->arena, bytes + 64);
    memcpy(to, &p, sizeof p);
    return p == NULL ? tsr_out_of_memory(err, "for kernels of attention") : TSR_OK;
}

void tsr_mla_lap(tsr_mla_work *w, tsr_phase phase)
{
    tsr_lap(w->evidence, phase, w->since);
}

static void fill_cache(tsr_mla_work *w)
{
    const tsr_mla_model *const m = w->s->model;
    const tsr_mla_batch *const b = w->s->batch;
    const size_t bytes = tsr_mla_cache_row_bytes(m->rank, m->rope, w->fp8);
    size_t next = 0;
    memset(w->cache, 0xFF, w->pages * TSR_MLA_PAGE * bytes);
    memset(w->table, 0xFF, b->sequences * w->max_pages * sizeof *w->table);
    for (size_t s = 0; s < b->sequences; s++) {
        w->seqlens[s] = (int32_t)(b->first[s + 1] - b->first[s]);
        for (size_t t = b->first[s]; t < b->first[s + 1]; t++) {
            const size_t at = t - b->first[s];
            if (at % TSR_MLA_PAGE == 0)
                w->table[s * w->max_pages + at / TSR_MLA_PAGE] = (int32_t)(w->pages - ++next);
            uint8_t *const row = w->cache + tsr_mla_row_of(w, s, t) * bytes;
            for (size_t i = 0; i < w->width; i++)
                w->scratch[i] = (float)(i < m->rank ? w->s->stages->of[TSR_STAGE_LATENT][t * m->rank + i]
                                                    : w->s->stages->of[TSR_STAGE_K_ROPE][t * m->rope + i - m->rank]);
            tsr_mla_cache_write(w->scratch, m->rank, m->rope, w->fp8, row);
            tsr_mla_cache_read(row, m->rank, m->rope, w->fp8, w->rows + t * w->width);
        }
    }
}

/* Computes the absorbed vector of query at / heads and head at % heads in BF16. */
static tsr_status fill_query(void *context, size_t at, size_t worker, tsr_err *err)
{
    const tsr_mla_work *const w = context;
    const tsr_mla_model *const m = w->s->model;
    const size_t query = at / m->heads, h = at % m->heads;
    uint16_t *const q = w->q + (tsr_mla_slot_of(w, query) * m->heads + h) * w->width;
    const double *const nope = w->s->stages->of[TSR_STAGE_QUERY] + at * (m->nope + m->rope);
    const double *const rope = w->s->stages->of[TSR_STAGE_Q_ROPE] + at * m->rope;
    double *const sums = calloc(m->rank + 1, sizeof *sums);
    (void)worker;
    if (sums == NULL)
        return tsr_out_of_memory(err, "for kernels of attention");
    for (size_t k = 0; k < m->nope; k++) {
        for (size_t i = 0; i < m->rank; i++)
            sums[i] += nope[k] * m->w_kc[(h * m->nope + k) * m->rank + i];
    }
    for (size_t i = 0; i < m->rank; i++)
        q[i] = tsr_bf16_from_f64(sums[i]);
    for (size_t i = 0; i < m->rope; i++)
        q[m->rank + i] = tsr_bf16_from_f64(rope[i]);
    free(sums);
    return TSR_OK;
}

/* Returns pointers to the exact result of query and head `at`. */
static tsr_attention_exact exact_of(const tsr_mla_work *w, size_t at)
{
    const size_t from = at * w->s->model->rank;
    return (tsr_attention_exact){w->exact + from, w->mass + from, w->square + from, w->jitter + from, w->largest[at]};
}

/* Solves query and head i. */
static tsr_status solve_one(void *context, size_t i, size_t worker, tsr_err *err)
{
    const tsr_mla_work *const w = context;
    const size_t heads = w->s->model->heads, longest = w->s->batch->longest;
    double *const scratch = malloc((2 * (w->list + longest) + w->width + 1) * sizeof *scratch);
    (void)worker;
    if (scratch == NULL)
        return tsr_out_of_memory(err, "for kernels of attention");
    const tsr_attended tokens = tsr_mla_attended(w, i / heads);
    tsr_attention_exact exact = exact_of(w, i);
    uint16_t *const q = w->q + (tsr_mla_slot_of(w, i / heads) * heads + i % heads) * w->width;
    if (w->steep)
        tsr_attention_steepen(&tokens, q, scratch);
    tsr_attention_solve(&tokens, q, scratch, &exact);
    w->largest[i] = exact.largest;
    free(scratch);
    return TSR_OK;
}

tsr_status tsr_mla_fill(tsr_mla_work *w, tsr_err *err)
{
    const size_t heads = w->s->model->heads, n = w->s->batch->queries * heads;
    fill_cache(w);
    if (w->list > 0)
        tsr_mla_fill_lists(w);
    const tsr_run_options *const run = &w->s->options->run;
    TSR_TRY(tsr_parallel_for(n, run->threads, run->cancel, fill_query, w, err));
    tsr_mla_lap(w, TSR_PHASE_QUANTIZE);
    const tsr_status status = tsr_parallel_for(n, run->threads, run->cancel, solve_one, w, err);
    tsr_mla_lap(w, TSR_PHASE_ORACLE);
    return status;
}

tsr_mla_attention tsr_mla_arguments(const tsr_mla_work *w)
{
    const tsr_mla_model *const m = w->s->model;
    return (tsr_mla_attention){.q = w->q,
                               .cache = w->cache,
                               .block_table = w->table,
                               .seqlens = w->seqlens,
                               .indices = w->list > 0 ? w->indices : NULL,
                               .top_k = w->list,
                               .out = w->out,
                               .row = w->scratch,
                               .batch = w->s->batch->sequences,
                               .s_q = w->s_q,
                               .heads = m->heads,
                               .latent = m->rank,
                               .rope = m->rope,
                               .page = TSR_MLA_PAGE,
                               .max_pages = w->max_pages,
                               .pages = w->pages,
                               .scale = (float)m->softmax_scale,
                               .fp8 = w->fp8};
}

tsr_status tsr_mla_end_tally(tsr_mla_work *w, tsr_kernel_tally *t, const char *fault, const char *rms_fault,
                             tsr_err *err)
{
    tsr_mla_lap(w, TSR_PHASE_JUDGE);
    return tsr_kernel_tally_end(t, &w->s->options->limits, fault, rms_fault, w->evidence, err);
}

tsr_status tsr_mla_judge_decode(tsr_mla_work *w, const tsr_device_mla *kernel, const char *what, double seconds,
                                tsr_err *err)
{
    const size_t rank = w->s->model->rank, heads = w->s->model->heads, cols = heads * rank;
    const tsr_attention_rounding rounding = {kernel->tensor_core, kernel->to_bf16, TSR_MLA_PAGE};
    const tsr_tally_of of = {.subject = w->s->name,
                             .what = what,
                             .seconds = seconds,
                             .rows = w->s->batch->queries * heads,
                             .cols = rank,
                             .out = kernel->to_bf16 ? TSR_OUT_BF16 : TSR_OUT_F32,
                             .shared = TSR_SHARE_ROWS,
                             .systematic = tsr_attention_slope(&rounding)};
    tsr_kernel_tally t;
    TSR_TRY(tsr_kernel_tally_begin(&t, &of, err));
    for (size_t i = 0; i < w->s->batch->queries * heads; i++) {
        const tsr_attended tokens = tsr_mla_attended(w, i / heads);
        const tsr_attention_exact exact = exact_of(w, i);
        for (size_t k = 0; k < rank; k++) {
            const double got = (double)w->out[(tsr_mla_slot_of(w, i / heads) * heads + i % heads) * rank + k];
            w->got[i * rank + k] = got;
            tsr_kernel_tally_count(&t, i, k, exact.exact[k], got, tsr_attention_bound(&rounding, &tokens, &exact, k),
                                   tsr_attention_variance(&rounding, &tokens, &exact, k));
        }
    }
    tsr_judge(&t.judgement, w->exact, w->got, w->s->batch->queries, cols, NULL, NULL);
    const tsr_status status = w->list > 0 ? tsr_mla_name_sparse(w, &t.judgement, err) : TSR_OK;
    const tsr_status ended =
        tsr_mla_end_tally(w, &t, "above the bound of its accumulation", "errors above those of its accumulation", err);
    return status != TSR_OK ? status : ended;
}
