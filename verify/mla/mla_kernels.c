/* Builds operands, computes exact results, and runs and judges each kernel. */
#include "verify/mla/mla_work.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "common/parallel_for.h"
#include "verify/mla/attention_oracle.h"
#include "verify/weights/weight_product.h"
#include "verify/weights/weight_reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 64 };

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

/* ---- operands ---- */

static size_t slot_of(const tsr_mla_work *w, size_t query)
{
    const tsr_mla_batch *const b = w->s->batch;
    const size_t s = b->seq_of[query];
    return s * w->s_q + w->s_q - (b->first[s + 1] - b->token_of[query]);
}

static void fill_cache(tsr_mla_work *w)
{
    const tsr_mla_model *const m = w->s->model;
    const tsr_mla_batch *const b = w->s->batch;
    const size_t bytes = tsr_mla_cache_row_bytes(m->rank, m->rope, w->fp8);
    size_t next = 0;
    memset(w->cache, 0xFF, w->pages * PAGE * bytes);
    memset(w->table, 0xFF, b->sequences * w->max_pages * sizeof *w->table);
    for (size_t s = 0; s < b->sequences; s++) {
        w->seqlens[s] = (int32_t)(b->first[s + 1] - b->first[s]);
        for (size_t t = b->first[s]; t < b->first[s + 1]; t++) {
            const size_t at = t - b->first[s];
            if (at % PAGE == 0)
                w->table[s * w->max_pages + at / PAGE] = (int32_t)(w->pages - ++next);
            uint8_t *const row = w->cache + ((size_t)w->table[s * w->max_pages + at / PAGE] * PAGE + at % PAGE) * bytes;
            for (size_t i = 0; i < w->width; i++)
                w->scratch[i] = (float)(i < m->rank ? w->s->stages->of[TSR_STAGE_LATENT][t * m->rank + i]
                                                    : w->s->stages->of[TSR_STAGE_K_ROPE][t * m->rope + i - m->rank]);
            tsr_mla_cache_write(w->scratch, m->rank, m->rope, w->fp8, row);
            tsr_mla_cache_read(row, m->rank, m->rope, w->fp8, w->rows + t * w->width);
        }
    }
}

/* One query's absorbed vector in BF16. */
static void fill_query(const tsr_mla_work *w, size_t query, size_t h)
{
    const tsr_mla_model *const m = w->s->model;
    uint16_t *const q = w->q + (slot_of(w, query) * m->heads + h) * w->width;
    const double *const nope = w->s->stages->of[TSR_STAGE_QUERY] + (query * m->heads + h) * (m->nope + m->rope);
    for (size_t i = 0; i < m->rank; i++) {
        double sum = 0;
        for (size_t k = 0; k < m->nope; k++)
            sum += nope[k] * m->w_kc[(h * m->nope + k) * m->rank + i];
        q[i] = tsr_bf16_from_f64(sum);
    }
    for (size_t i = 0; i < m->rope; i++)
        q[m->rank + i] = tsr_bf16_from_f64(w->s->stages->of[TSR_STAGE_Q_ROPE][(query * m->heads + h) * m->rope + i]);
}

/* The tokens that a query attends to. */
static tsr_attended tokens_of(const tsr_mla_work *w, size_t query)
{
    const float *const rows = w->rows + w->s->batch->first[w->s->batch->seq_of[query]] * w->width;
    return (tsr_attended){.keys = rows,
                          .values = rows,
                          .ld_keys = w->width,
                          .ld_values = w->width,
                          .width = w->width,
                          .columns = w->s->model->rank,
                          .n = tsr_mla_tokens_seen(w->s->batch, query),
                          .scale = (double)(float)w->s->model->softmax_scale};
}

/* Where the exact result of query and head `at` is. */
static tsr_attention_exact exact_of(const tsr_mla_work *w, size_t at)
{
    const size_t from = at * w->s->model->rank;
    return (tsr_attention_exact){w->exact + from, w->mass + from, w->square + from, w->jitter + from, w->largest[at]};
}

/* Query and head i. */
static tsr_status solve_one(void *context, size_t i, size_t worker, tsr_err *err)
{
    const tsr_mla_work *const w = context;
    const size_t heads = w->s->model->heads, longest = w->s->batch->longest;
    double *const scratch = malloc((2 * longest + w->width + 1) * sizeof *scratch);
    (void)worker;
    if (scratch == NULL)
        return tsr_out_of_memory(err, "for kernels of attention");
    const tsr_attended tokens = tokens_of(w, i / heads);
    tsr_attention_exact exact = exact_of(w, i);
    uint16_t *const q = w->q + (slot_of(w, i / heads) * heads + i % heads) * w->width;
    if (w->steep)
        tsr_attention_steepen(&tokens, q, scratch);
    tsr_attention_solve(&tokens, q, scratch, &exact);
    w->largest[i] = exact.largest;
    free(scratch);
    return TSR_OK;
}

static tsr_status fill(tsr_mla_work *w, tsr_err *err)
{
    const size_t heads = w->s->model->heads, n = w->s->batch->queries * heads;
    fill_cache(w);
    for (size_t i = 0; i < n; i++)
        fill_query(w, i / heads, i % heads);
    tsr_mla_lap(w, TSR_PHASE_QUANTIZE);
    const tsr_run_options *const run = &w->s->options->run;
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
                               .out = w->out,
                               .row = w->scratch,
                               .batch = w->s->batch->sequences,
                               .s_q = w->s_q,
                               .heads = m->heads,
                               .latent = m->rank,
                               .rope = m->rope,
                               .page = PAGE,
                               .max_pages = w->max_pages,
                               .pages = w->pages,
                               .scale = (float)m->softmax_scale,
                               .fp8 = w->fp8};
}

/* ---- judging ---- */

void tsr_mla_judge_sqnr(tsr_judgement *j, const double *x, const double *y, size_t rows, size_t cols, double min_sqnr)
{
    tsr_judge(j, x, y, rows, cols, NULL, NULL);
    if (!(tsr_metrics_sqnr(&j->metrics) >= min_sqnr) || j->metrics.nonfinite[1] > 0)
        j->fault = "SQNR below --min-sqnr";
}

/* What the cache's format costs: attention over the operands against attention over their originals. */
static tsr_status judge_cache(tsr_mla_work *w, tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const size_t queries = w->s->batch->queries, cols = m->heads * m->v;
    tsr_judgement j = {.subject = w->s->name,
                       .what = w->fp8 ? "FP8 latent cache, BF16 queries" : "BF16 latent cache and queries",
                       .kind = TSR_ERROR_QUANTIZATION,
                       .of_bound = -1,
                       .of_expected = -1};
    for (size_t i = 0; i < queries * cols; i++) {
        const size_t row = i / m->v, h = row % m->heads;
        w->values[i] = tsr_dot(w->exact + row * m->rank, m->w_vc + (h * m->v + i % m->v) * m->rank, m->rank);
    }
    tsr_mla_judge_sqnr(&j, w->s->stages->of[TSR_STAGE_ATTENTION], w->values, queries, cols, w->s->min_sqnr);
    tsr_mla_lap(w, TSR_PHASE_JUDGE);
    return tsr_evidence_add(w->evidence, &j, err);
}

tsr_status tsr_mla_end_tally(tsr_mla_work *w, tsr_kernel_tally *t, const char *fault, const char *rms_fault,
                             tsr_err *err)
{
    tsr_mla_lap(w, TSR_PHASE_JUDGE);
    return tsr_kernel_tally_end(t, &w->s->options->limits, fault, rms_fault, w->evidence, err);
}

/* w->out against the exact result. */
tsr_status tsr_mla_judge_decode(tsr_mla_work *w, const tsr_device_mla *kernel, const char *what, double seconds,
                                tsr_err *err)
{
    const size_t rank = w->s->model->rank, heads = w->s->model->heads, cols = heads * rank;
    const tsr_attention_rounding rounding = {kernel->tensor_core, kernel->to_bf16, PAGE};
    const tsr_tally_of of = {.subject = w->s->name,
                             .what = what,
                             .seconds = seconds,
                             .rows = w->s->batch->queries * heads,
                             .cols = rank,
                             .narrow = kernel->to_bf16,
                             .shared = TSR_SHARE_ROWS,
                             .systematic = tsr_attention_slope(&rounding)};
    tsr_kernel_tally t;
    TSR_TRY(tsr_kernel_tally_begin(&t, &of, err));
    for (size_t i = 0; i < w->s->batch->queries * heads; i++) {
        const tsr_attended tokens = tokens_of(w, i / heads);
        const tsr_attention_exact exact = exact_of(w, i);
        for (size_t k = 0; k < rank; k++) {
            const double got = (double)w->out[(slot_of(w, i / heads) * heads + i % heads) * rank + k];
            w->got[i * rank + k] = got;
            tsr_kernel_tally_count(&t, i, k, exact.exact[k], got, tsr_attention_bound(&rounding, &tokens, &exact, k),
                                   tsr_attention_variance(&rounding, &tokens, &exact, k));
        }
    }
    tsr_judge(&t.judgement, w->exact, w->got, w->s->batch->queries, cols, NULL, NULL);
    return tsr_mla_end_tally(w, &t, "beyond what its accumulation can do", "errors beyond those of its accumulation",
                             err);
}

/* How often the sequences are repeated for a kernel that shares its tokens out among all parts of a GPU: so often that each
 * part gets several pages, and has to rescale what it has added up. */
static size_t copies_of(const tsr_mla_work *w, const tsr_device_mla *kernel)
{
    enum { ENOUGH_PAGES = 4 * 132, MOST = 64 };
    const size_t once = w->pages + 2 * w->s->batch->sequences;
    return w->steep && kernel->tensor_core ? (size_t)tsr_min_u64(tsr_ceil_div(ENOUGH_PAGES, once), MOST) : 1;
}

/* Copies of the sequences share their pages. Of each query and head the results of one copy are kept, of the next another's. */
static tsr_status run_copies(tsr_mla_work *w, const tsr_device_mla *kernel, size_t copies, double *seconds,
                             tsr_err *err)
{
    tsr_mla_attention args = tsr_mla_arguments(w);
    const size_t row = args.heads * args.latent, table = args.batch * args.max_pages, out = w->slots * row,
                 q = w->slots * args.heads * w->width;
    uint16_t *const queries = malloc(copies * q * sizeof *queries);
    int32_t *const lengths = malloc(copies * (args.batch + table) * sizeof *lengths), *const pages =
                                                                                          lengths + copies * args.batch;
    float *const results = malloc(copies * out * sizeof *results);
    tsr_status status = TSR_OK;
    if (queries == NULL || lengths == NULL || results == NULL)
        status = tsr_out_of_memory(err, "for copies of sequences");
    for (size_t i = 0; status == TSR_OK && i < copies; i++) {
        memcpy(queries + i * q, args.q, q * sizeof *queries);
        memcpy(lengths + i * args.batch, args.seqlens, args.batch * sizeof *lengths);
        memcpy(pages + i * table, args.block_table, table * sizeof *pages);
    }
    if (status == TSR_OK) {
        memset(results, 0xFF, copies * out * sizeof *results);
        args.q = queries, args.seqlens = lengths, args.block_table = pages, args.out = results;
        args.batch *= copies;
        status = kernel->run(kernel, 0, &args, seconds, err);
    }
    for (size_t i = 0; status == TSR_OK && i < w->slots * args.heads; i++)
        memcpy(w->out + i * args.latent, results + (i % copies) * out + i * args.latent, args.latent * sizeof *results);
    free(queries);
    free(lengths);
    free(results);
    return status;
}

static tsr_status run_kernel(tsr_mla_work *w, const tsr_device_mla *kernel, tsr_err *err)
{
    const tsr_mla_attention args = tsr_mla_arguments(w);
    char what[96];
    double seconds = 0;
    memset(w->out, 0xFF, w->slots * args.heads * args.latent * sizeof *w->out);
    snprintf(what, sizeof what, "%s, %s%s", kernel->name,
             !w->fp8          ? "BF16 cache"
             : kernel->widens ? "FP8 cache widened to BF16 on load"
                              : "FP8 cache",
             w->steep ? ", steep scores" : "");
    tsr_err why = {{0}};
    const size_t copies = copies_of(w, kernel);
    const tsr_status status =
        copies > 1 ? run_copies(w, kernel, copies, &seconds, &why) : kernel->run(kernel, 0, &args, &seconds, &why);
    tsr_mla_lap(w, TSR_PHASE_KERNELS);
    if (status == TSR_E_UNSUPPORTED) /* noted once, not for each set of operands */
        return w->fp8 || w->steep ? TSR_OK : tsr_evidence_skip(w->evidence, w->s->name, why.msg, err);
    if (status != TSR_OK)
        return tsr_fail(err, status, "%s", why.msg);
    return tsr_mla_judge_decode(w, kernel, what, seconds, err);
}

/* ---- all of it ---- */

static tsr_status open_work(tsr_mla_work *w, tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const tsr_mla_batch *const b = w->s->batch;
    const size_t n = b->queries * m->heads;
    w->width = m->rank + m->rope;
    w->s_q = (size_t)w->s->options->mla.new_tokens;
    w->slots = b->sequences * w->s_q;
    w->max_pages = tsr_ceil_div(b->longest, PAGE);
    for (size_t s = 0; s < b->sequences; s++)
        w->pages += tsr_ceil_div(b->first[s + 1] - b->first[s], PAGE);
    TSR_TRY(tsr_mla_take(w, &w->q, w->slots * m->heads * w->width * sizeof *w->q, err));
    TSR_TRY(tsr_mla_take(w, &w->cache, w->pages * PAGE * tsr_mla_cache_row_bytes(m->rank, m->rope, false), err));
    TSR_TRY(tsr_mla_take(w, &w->table, b->sequences * w->max_pages * sizeof *w->table, err));
    TSR_TRY(tsr_mla_take(w, &w->seqlens, b->sequences * sizeof *w->seqlens, err));
    TSR_TRY(tsr_mla_take(w, &w->rows, b->tokens * w->width * sizeof *w->rows, err));
    TSR_TRY(tsr_mla_take(w, &w->out, w->slots * m->heads * m->rank * sizeof *w->out, err));
    TSR_TRY(tsr_mla_take(w, &w->scratch, w->width * sizeof *w->scratch, err));
    TSR_TRY(tsr_mla_take(w, &w->exact, n * m->rank * sizeof *w->exact, err));
    TSR_TRY(tsr_mla_take(w, &w->mass, n * m->rank * sizeof *w->mass, err));
    TSR_TRY(tsr_mla_take(w, &w->square, n * m->rank * sizeof *w->square, err));
    TSR_TRY(tsr_mla_take(w, &w->largest, n * sizeof *w->largest, err));
    TSR_TRY(tsr_mla_take(w, &w->jitter, n * m->rank * sizeof *w->jitter, err));
    TSR_TRY(tsr_mla_take(w, &w->got, n * m->rank * sizeof *w->got, err));
    TSR_TRY(tsr_mla_take(w, &w->values, n * m->v * sizeof *w->values, err));
    memset(w->q, 0, w->slots * m->heads * w->width * sizeof *w->q);
    return TSR_OK;
}

/* What quantizing cost is judged once: steep queries have no originals. */
static tsr_status check_cache(tsr_mla_work *w, bool fp8, bool steep, tsr_err *err)
{
    const tsr_device *const device = w->s->options->device;
    w->fp8 = fp8;
    w->steep = steep;
    TSR_TRY(fill(w, err));
    if (!steep)
        TSR_TRY(judge_cache(w, err));
    for (size_t i = 0; i < device->n_mlas; i++)
        TSR_TRY(run_kernel(w, &device->mlas[i], err));
    return TSR_OK;
}

static tsr_status check_all(tsr_mla_work *w, tsr_err *err)
{
    TSR_TRY(open_work(w, err));
    TSR_TRY(check_cache(w, false, false, err));
    if (w->s->options->mla.ranks > 1)
        TSR_TRY(tsr_mla_check_ranks(w, err));
    TSR_TRY(check_cache(w, false, true, err));
    return w->s->options->mla.fp8_cache ? check_cache(w, true, false, err) : TSR_OK;
}

tsr_status tsr_mla_check_kernels(const tsr_mla_subject *subject, tsr_evidence *evidence, double *since, tsr_err *err)
{
    tsr_mla_work w = {.s = subject, .evidence = evidence, .since = since};
    const tsr_status status = check_all(&w, err);
    tsr_arena_free(&w.arena);
    return status;
}
