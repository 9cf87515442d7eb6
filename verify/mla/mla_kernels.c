/* Runs and judges each MLA kernel of a device. */
#include "verify/mla/mla_work.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "common/parallel/parallel_for.h"
#include "verify/mla/sparse/sparse_lists.h"
#include "verify/values/weight_product.h"
#include "verify/values/weight_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tsr_mla_judge_sqnr(tsr_judgement *j, const double *x, const double *y, size_t rows, size_t cols, double min_sqnr)
{
    tsr_judge(j, x, y, rows, cols, NULL, NULL);
    if (!(tsr_metrics_sqnr(&j->metrics) >= min_sqnr) || j->metrics.nonfinite[1] > 0)
        j->fault = "SQNR below --min-sqnr";
}

/* Applies W_v to the exact result of one query and head. */
static tsr_status expand_row(void *context, size_t row, size_t worker, tsr_err *err)
{
    const tsr_mla_work *const w = context;
    const tsr_mla_model *const m = w->s->model;
    (void)worker, (void)err;
    for (size_t i = 0; i < m->v; i++)
        w->values[row * m->v + i] =
            tsr_dot(w->exact + row * m->rank, m->w_vc + (row % m->heads * m->v + i) * m->rank, m->rank);
    return TSR_OK;
}

/* Judges the error of the cache's format: attention over the operands against attention over their originals. For
 * sparse attention these are all tokens, so that the figure has the error of leaving tokens out as well. */
static tsr_status judge_cache(tsr_mla_work *w, tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const size_t queries = w->s->batch->queries, cols = m->heads * m->v;
    char what[160], sparse[96] = "";
    if (w->list > 0)
        snprintf(sparse, sizeof sparse, "%s, %zu of %zu tokens, against attention to all", w->s->batch_name,
                 w->s->top_k, w->s->batch->longest);
    snprintf(what, sizeof what, "%s%s", w->fp8 ? "FP8 latent cache, BF16 queries" : "BF16 latent cache and queries",
             sparse);
    tsr_judgement j = {
        .subject = w->s->name, .what = what, .kind = TSR_ERROR_QUANTIZATION, .of_bound = -1, .of_expected = -1};
    const tsr_run_options *const run = &w->s->options->run;
    TSR_TRY(tsr_parallel_for(queries * m->heads, run->threads, run->cancel, expand_row, w, err));
    if (w->list > 0) /* the cost of leaving tokens out is shown, without a limit */
        tsr_judge(&j, w->s->stages->of[TSR_STAGE_ATTENTION], w->values, queries, cols, NULL, NULL);
    else
        tsr_mla_judge_sqnr(&j, w->s->stages->of[TSR_STAGE_ATTENTION], w->values, queries, cols, w->s->min_sqnr);
    tsr_mla_lap(w, TSR_PHASE_JUDGE);
    return tsr_evidence_add(w->evidence, &j, err);
}

/* Returns how often the sequences are repeated for a kernel that divides the tokens among all parts of a GPU. Each
 * part then gets several pages, and must rescale its sums. */
static size_t copies_of(const tsr_mla_work *w, const tsr_device_mla *kernel)
{
    enum { ENOUGH_PAGES = 4 * 132, MOST = 64 };
    const size_t once = w->pages + 2 * w->s->batch->sequences;
    return w->steep && kernel->tensor_core ? (size_t)tsr_min_u64(tsr_ceil_div(ENOUGH_PAGES, once), MOST) : 1;
}

/* Runs a kernel over copies of the sequences, which share their pages. Each query and head keeps the result of one
 * copy, in rotation. */
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
    int32_t *const lists = malloc((copies * w->slots * w->list + 1) * sizeof *lists);
    tsr_status status = TSR_OK;
    if (queries == NULL || lengths == NULL || results == NULL || lists == NULL)
        status = tsr_out_of_memory(err, "for copies of sequences");
    for (size_t i = 0; status == TSR_OK && i < copies; i++) {
        memcpy(queries + i * q, args.q, q * sizeof *queries);
        memcpy(lengths + i * args.batch, args.seqlens, args.batch * sizeof *lengths);
        memcpy(pages + i * table, args.block_table, table * sizeof *pages);
        if (w->list > 0)
            memcpy(lists + i * w->slots * w->list, args.indices, w->slots * w->list * sizeof *lists);
    }
    if (status == TSR_OK) {
        memset(results, 0xFF, copies * out * sizeof *results);
        args.q = queries, args.seqlens = lengths, args.block_table = pages, args.out = results;
        args.indices = w->list > 0 ? lists : NULL;
        args.batch *= copies;
        status = kernel->run(kernel, 0, &args, seconds, err);
    }
    for (size_t i = 0; status == TSR_OK && i < w->slots * args.heads; i++)
        memcpy(w->out + i * args.latent, results + (i % copies) * out + i * args.latent, args.latent * sizeof *results);
    free(queries);
    free(lengths);
    free(results);
    free(lists);
    return status;
}

tsr_status tsr_mla_skip_once(tsr_evidence *evidence, const char *subject, const char *why, tsr_err *err)
{
    for (size_t i = 0; i < evidence->n_skipped; i++) {
        if (strcmp(evidence->skipped[i].why, why) == 0)
            return TSR_OK;
    }
    return tsr_evidence_skip(evidence, subject, why, err);
}

static tsr_status run_kernel(tsr_mla_work *w, const tsr_device_mla *kernel, tsr_err *err)
{
    const tsr_mla_attention args = tsr_mla_arguments(w);
    char what[128];
    double seconds = 0;
    memset(w->out, 0xFF, w->slots * args.heads * args.latent * sizeof *w->out);
    snprintf(what, sizeof what, "%s%s, %s%s", kernel->name, w->list > 0 ? w->s->batch_name : "",
             !w->fp8          ? "BF16 cache"
             : kernel->widens ? "FP8 cache widened to BF16 on load"
                              : "FP8 cache",
             w->steep ? ", steep scores" : "");
    tsr_err why = {0};
    const size_t copies = copies_of(w, kernel);
    const tsr_status status =
        copies > 1 ? run_copies(w, kernel, copies, &seconds, &why) : kernel->run(kernel, 0, &args, &seconds, &why);
    tsr_mla_lap(w, TSR_PHASE_KERNELS);
    if (status == TSR_E_UNSUPPORTED)
        return tsr_mla_skip_once(w->evidence, w->s->name, why.msg, err);
    if (status != TSR_OK)
        return tsr_fail_with(err, status, &why);
    return tsr_mla_judge_decode(w, kernel, what, seconds, err);
}

static tsr_status open_work(tsr_mla_work *w, tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const tsr_mla_batch *const b = w->s->batch;
    const size_t n = b->queries * m->heads;
    w->width = m->rank + m->rope;
    w->s_q = w->s->new_tokens;
    w->list = w->s->choice != NULL ? tsr_mla_list_length(w->s->top_k) : 0;
    w->slots = b->sequences * w->s_q;
    w->max_pages = tsr_ceil_div(b->longest, TSR_MLA_PAGE);
    for (size_t s = 0; s < b->sequences; s++)
        w->pages += tsr_ceil_div(b->first[s + 1] - b->first[s], TSR_MLA_PAGE);
    TSR_TRY(tsr_mla_take(w, &w->q, w->slots * m->heads * w->width * sizeof *w->q, err));
    TSR_TRY(
        tsr_mla_take(w, &w->cache, w->pages * TSR_MLA_PAGE * tsr_mla_cache_row_bytes(m->rank, m->rope, false), err));
    TSR_TRY(tsr_mla_take(w, &w->table, b->sequences * w->max_pages * sizeof *w->table, err));
    TSR_TRY(tsr_mla_take(w, &w->seqlens, b->sequences * sizeof *w->seqlens, err));
    TSR_TRY(tsr_mla_take(w, &w->rows, (b->tokens + 1) * w->width * sizeof *w->rows, err));
    TSR_TRY(tsr_mla_take(w, &w->out, w->slots * m->heads * m->rank * sizeof *w->out, err));
    TSR_TRY(tsr_mla_take(w, &w->scratch, w->width * sizeof *w->scratch, err));
    TSR_TRY(tsr_mla_take(w, &w->exact, n * m->rank * sizeof *w->exact, err));
    TSR_TRY(tsr_mla_take(w, &w->mass, n * m->rank * sizeof *w->mass, err));
    TSR_TRY(tsr_mla_take(w, &w->square, n * m->rank * sizeof *w->square, err));
    TSR_TRY(tsr_mla_take(w, &w->largest, n * sizeof *w->largest, err));
    TSR_TRY(tsr_mla_take(w, &w->jitter, n * m->rank * sizeof *w->jitter, err));
    TSR_TRY(tsr_mla_take(w, &w->got, n * m->rank * sizeof *w->got, err));
    TSR_TRY(tsr_mla_take(w, &w->values, n * m->v * sizeof *w->values, err));
    TSR_TRY(tsr_mla_take(w, &w->indices, w->slots * w->list * sizeof *w->indices, err));
    TSR_TRY(tsr_mla_take(w, &w->listed, b->queries * w->list * sizeof *w->listed, err));
    TSR_TRY(tsr_mla_take(w, &w->n_listed, b->queries * sizeof *w->n_listed, err));
    memset(w->q, 0, w->slots * m->heads * w->width * sizeof *w->q);
    return TSR_OK;
}

/* Judges a cache format. The quantization error is judged once: steep queries have no originals. */
static tsr_status check_cache(tsr_mla_work *w, bool fp8, bool steep, tsr_err *err)
{
    const tsr_device *const device = w->s->options->device;
    w->fp8 = fp8;
    w->steep = steep;
    TSR_TRY(tsr_mla_fill(w, err));
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
    if (w->s->options->ranks > 1 && w->list == 0)
        TSR_TRY(tsr_mla_check_ranks(w, err));
    TSR_TRY(check_cache(w, false, true, err));
    if (!w->s->options->mla.fp8_cache)
        return TSR_OK;
    TSR_TRY(check_cache(w, true, false, err));
    return w->list > 0 ? check_cache(w, true, true, err) : TSR_OK;
}

tsr_status tsr_mla_check_kernels(const tsr_mla_subject *subject, tsr_evidence *evidence, double *since, tsr_err *err)
{
    tsr_mla_work w = {.s = subject, .evidence = evidence, .since = since};
    const tsr_status status = check_all(&w, err);
    tsr_arena_free(&w.arena);
    return status;
}
