/* Operands, exact results, and what each kernel makes of them. */
#include "verify/mla/mla_kernels.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "common/parallel_for.h"
#include "kernels/cpu/mla_attention.h"
#include "verify/evidence/kernel_tally.h"
#include "verify/mla/attention_oracle.h"
#include "verify/weights/weight_product.h"
#include "verify/weights/weight_reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 64, BAND = 64 };

static const double kUnit = 0x1p-24, kHigherOrders = 1.01;

/* What kernels work on, and what is exact over it. A slot is a query of a sequence, whether there is one or not. */
typedef struct work {
    const tsr_mla_subject *s;
    tsr_evidence *evidence;
    double *since;
    size_t width, s_q, pages, max_pages, slots;
    bool fp8;
    uint16_t *q; /* [slots][heads][width] */
    uint8_t *cache;
    int32_t *table, *seqlens;
    float *rows; /* [tokens][width] as attention sees them */
    float *out;  /* [slots][heads][rank] */
    float *scratch;
    double *exact;         /* [queries][heads][rank] */
    double *mass, *square; /* likewise: sums of p |v| and of (p v)^2 */
    double *jitter;        /* likewise: what roundings of scores move, in units of u^2 / 3 */
    double *largest;       /* [queries][heads]: of any token's sum |q k| */
    double *got, *values;  /* [queries][heads][rank]; [queries][heads][v], exact */
    tsr_arena arena;
} work;

static tsr_status take(work *w, void *to, size_t bytes, tsr_err *err)
{
    void *const p = tsr_arena_alloc(&w->arena, bytes + 64);
    memcpy(to, &p, sizeof p);
    return p == NULL ? tsr_out_of_memory(err, "for kernels of attention") : TSR_OK;
}

static void lap(work *w, tsr_phase phase)
{
    tsr_lap(w->evidence, phase, w->since);
}

/* ---- operands ---- */

static size_t slot_of(const work *w, size_t query)
{
    const tsr_mla_batch *const b = w->s->batch;
    const size_t s = b->seq_of[query];
    return s * w->s_q + w->s_q - (b->first[s + 1] - b->token_of[query]);
}

static void fill_cache(work *w)
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
static void fill_query(const work *w, size_t query, size_t h)
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

/* What a query sees. */
static tsr_attended tokens_of(const work *w, size_t query)
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
static tsr_attention_exact exact_of(const work *w, size_t at)
{
    const size_t from = at * w->s->model->rank;
    return (tsr_attention_exact){w->exact + from, w->mass + from, w->square + from, w->jitter + from, w->largest[at]};
}

/* Query and head i. */
static tsr_status solve_one(void *context, size_t i, size_t worker, tsr_err *err)
{
    const work *const w = context;
    const size_t heads = w->s->model->heads, longest = w->s->batch->longest;
    double *const scratch = malloc((2 * longest + w->width + 1) * sizeof *scratch);
    (void)worker;
    if (scratch == NULL)
        return tsr_out_of_memory(err, "for kernels of attention");
    const tsr_attended tokens = tokens_of(w, i / heads);
    tsr_attention_exact exact = exact_of(w, i);
    tsr_attention_solve(&tokens, w->q + (slot_of(w, i / heads) * heads + i % heads) * w->width, scratch, &exact);
    w->largest[i] = exact.largest;
    free(scratch);
    return TSR_OK;
}

static tsr_status fill(work *w, tsr_err *err)
{
    const size_t heads = w->s->model->heads, n = w->s->batch->queries * heads;
    fill_cache(w);
    for (size_t i = 0; i < n; i++)
        fill_query(w, i / heads, i % heads);
    lap(w, TSR_PHASE_QUANTIZE);
    const tsr_status status = tsr_parallel_for(n, w->s->options->threads, w->s->options->cancel, solve_one, w, err);
    lap(w, TSR_PHASE_ORACLE);
    return status;
}

static tsr_mla_attention arguments_of(const work *w)
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
static tsr_status judge_cache(work *w, tsr_err *err)
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
    lap(w, TSR_PHASE_JUDGE);
    return tsr_evidence_add(w->evidence, &j, err);
}

static tsr_status end_tally(work *w, tsr_kernel_tally *t, const char *fault, const char *rms_fault, tsr_err *err)
{
    lap(w, TSR_PHASE_JUDGE);
    return tsr_kernel_tally_end(t, &w->s->options->limits, fault, rms_fault, w->evidence, err);
}

/* w->out against the exact result. */
static tsr_status judge_decode(work *w, const tsr_device_mla *kernel, const char *what, double seconds, tsr_err *err)
{
    const size_t rank = w->s->model->rank, heads = w->s->model->heads, cols = heads * rank;
    const tsr_attention_rounding rounding = {kernel->tensor_core, kernel->to_bf16, PAGE};
    tsr_kernel_tally t = tsr_kernel_tally_begin(w->s->name, what, seconds);
    for (size_t i = 0; i < w->s->batch->queries * heads; i++) {
        const tsr_attended tokens = tokens_of(w, i / heads);
        const tsr_attention_exact exact = exact_of(w, i);
        for (size_t k = 0; k < rank; k++) {
            const double got = (double)w->out[(slot_of(w, i / heads) * heads + i % heads) * rank + k];
            w->got[i * rank + k] = got;
            tsr_kernel_tally_count(&t, fabs(got - exact.exact[k]), tsr_attention_bound(&rounding, &tokens, &exact, k),
                                   tsr_attention_variance(&rounding, &tokens, &exact, k));
        }
    }
    tsr_judge(&t.judgement, w->exact, w->got, w->s->batch->queries, cols, NULL, NULL);
    return end_tally(w, &t, "beyond what its accumulation can do", "errors beyond those of its accumulation", err);
}

static tsr_status run_kernel(work *w, const tsr_device_mla *kernel, tsr_err *err)
{
    const tsr_mla_attention args = arguments_of(w);
    char what[96];
    double seconds = 0;
    memset(w->out, 0xFF, w->slots * args.heads * args.latent * sizeof *w->out);
    snprintf(what, sizeof what, "%s, %s", kernel->name,
             !w->fp8          ? "BF16 cache"
             : kernel->widens ? "FP8 cache widened to BF16 on load"
                              : "FP8 cache");
    tsr_err why = {{0}};
    const tsr_status status = kernel->run(kernel, 0, &args, &seconds, &why);
    lap(w, TSR_PHASE_KERNELS);
    if (status == TSR_E_UNSUPPORTED) /* of one cache and the other */
        return w->fp8 ? TSR_OK : tsr_evidence_skip(w->evidence, w->s->name, why.msg, err);
    if (status != TSR_OK)
        return tsr_fail(err, status, "%s", why.msg);
    return judge_decode(w, kernel, what, seconds, err);
}

/* ---- heads cut over ranks ---- */

/* Of each of the values that W_o is applied to. */
enum {
    EXACT,
    SIZE,     /* |value| as it was computed */
    MASS,     /* sum of the magnitudes that it is a sum of */
    SQUARE,   /* EXACT^2 */
    VARIANCE, /* what is to be expected of its error's square */
    N_OF_A
};

typedef struct cut {
    size_t ranks, share;         /* share: heads of a rank */
    char joined[64];             /* how */
    float *w_v, *w_o;            /* [heads][v][rank], [hidden][heads * v] */
    uint16_t *q;                 /* of one rank: [slots][share][width] */
    float *out;                  /* likewise [slots][share][rank] */
    float *values;               /* [slots][heads * v] */
    float *parts;                /* [ranks][slots][hidden] */
    float *uncut;                /* [slots][hidden] */
    double *row, *size, *square; /* of W_o: heads * v, and their magnitudes and squares */
    double *of_a[N_OF_A];        /* [slots][heads * v] */
    double *x, *y;               /* [slots][hidden], to be judged */
} cut;

static tsr_status load_weights(work *w, cut *c, tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const size_t cols = m->heads * m->v;
    tsr_weight_reader reader = {0};
    tsr_view view;
    for (size_t i = 0; i < cols * m->rank; i++)
        c->w_v[i] = (float)m->w_vc[i];
    tsr_status status = tsr_view_init(&view, m->checkpoint, m->o, err);
    for (size_t at = 0; status == TSR_OK && at < m->hidden; at += BAND) {
        const tsr_piece piece = {.row = at, .rows = tsr_min_u64(BAND, m->hidden - at), .cols = cols};
        status = tsr_weight_reader_load(&reader, &view, &piece, err);
        for (size_t i = 0; status == TSR_OK && i < piece.rows; i++) {
            tsr_weight_reader_row(&reader, i, 0, cols, c->row);
            for (size_t k = 0; k < cols; k++)
                c->w_o[(at + i) * cols + k] = (float)c->row[k];
        }
    }
    tsr_weight_reader_free(&reader);
    lap(w, TSR_PHASE_READ);
    return status;
}

static tsr_status open_cut(work *w, cut *c, tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const size_t cols = m->heads * m->v, outputs = w->slots * m->hidden;
    c->ranks = (size_t)w->s->options->mla.ranks;
    c->share = m->heads / c->ranks;
    TSR_TRY(take(w, &c->w_v, cols * m->rank * sizeof *c->w_v, err));
    TSR_TRY(take(w, &c->w_o, m->hidden * cols * sizeof *c->w_o, err));
    TSR_TRY(take(w, &c->q, w->slots * c->share * w->width * sizeof *c->q, err));
    TSR_TRY(take(w, &c->out, w->slots * c->share * m->rank * sizeof *c->out, err));
    TSR_TRY(take(w, &c->values, w->slots * cols * sizeof *c->values, err));
    TSR_TRY(take(w, &c->parts, c->ranks * outputs * sizeof *c->parts, err));
    TSR_TRY(take(w, &c->uncut, outputs * sizeof *c->uncut, err));
    TSR_TRY(take(w, &c->row, cols * sizeof *c->row, err));
    TSR_TRY(take(w, &c->size, cols * sizeof *c->size, err));
    TSR_TRY(take(w, &c->square, cols * sizeof *c->square, err));
    for (size_t i = 0; i < N_OF_A; i++)
        TSR_TRY(take(w, &c->of_a[i], w->slots * cols * sizeof(double), err));
    TSR_TRY(take(w, &c->x, outputs * sizeof *c->x, err));
    TSR_TRY(take(w, &c->y, outputs * sizeof *c->y, err));
    return load_weights(w, c, err);
}

/* One rank: attention of its heads, W_v, and its columns of W_o. */
static tsr_status run_rank(work *w, cut *c, const tsr_device_mla *kernel, size_t rank, double *slowest, tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const size_t first = rank * c->share, q_bytes = c->share * w->width * sizeof *c->q, cols = m->heads * m->v;
    tsr_mla_attention args = arguments_of(w);
    double seconds = 0;
    for (size_t i = 0; i < w->slots; i++)
        memcpy(c->q + i * c->share * w->width, w->q + (i * m->heads + first) * w->width, q_bytes);
    args.q = c->q;
    args.out = c->out;
    args.heads = c->share;
    TSR_TRY(kernel->run(kernel, rank, &args, &seconds, err));
    *slowest = fmax(*slowest, seconds);
    for (size_t i = 0; i < w->slots; i++)
        memcpy(w->out + (i * m->heads + first) * m->rank, c->out + i * c->share * m->rank,
               c->share * m->rank * sizeof *c->out);
    const tsr_project_args values = {.x = c->out,
                                     .w = c->w_v + first * m->v * m->rank,
                                     .y = c->values + first * m->v,
                                     .batch = c->share,
                                     .m = w->slots,
                                     .n = m->v,
                                     .k = m->rank,
                                     .ld_x = c->share * m->rank,
                                     .ld_w = m->rank,
                                     .ld_y = cols,
                                     .next_x = m->rank,
                                     .next_w = m->v * m->rank,
                                     .next_y = m->v};
    TSR_TRY(kernel->project(kernel, rank, &values, err));
    const tsr_project_args part = {.x = c->values + first * m->v,
                                   .w = c->w_o + first * m->v,
                                   .y = c->parts + rank * w->slots * m->hidden,
                                   .batch = 1,
                                   .m = w->slots,
                                   .n = m->hidden,
                                   .k = c->share * m->v,
                                   .ld_x = cols,
                                   .ld_w = cols,
                                   .ld_y = m->hidden};
    return kernel->project(kernel, rank, &part, err);
}

/* The same values through W_o at once. */
static tsr_status run_uncut(work *w, cut *c, const tsr_device_mla *kernel, tsr_err *err)
{
    const tsr_mla_model *const m = w->s->model;
    const size_t cols = m->heads * m->v;
    const tsr_project_args whole = {.x = c->values,
                                    .w = c->w_o,
                                    .y = c->uncut,
                                    .batch = 1,
                                    .m = w->slots,
                                    .n = m->hidden,
                                    .k = cols,
                                    .ld_x = cols,
                                    .ld_w = cols,
                                    .ld_y = m->hidden};
    return kernel->project(kernel, 0, &whole, err);
}

/* What is to be expected of the square of a projection's error, `more` additions behind it (verify/mla/mla_kernels.h).
 */
static double variance_of(size_t k, size_t more, double squares, double sum)
{
    const double lane = ceil((double)k / (double)TSR_PROJECT_LANES);
    return kUnit * kUnit / 3 * (squares * (lane / 2 + 6 + (double)more) + sum * sum * (lane / 96 + 1 + (double)more));
}

/* W_v in double over what attention gave. */
static void expand(const work *w, cut *c)
{
    const tsr_mla_model *const m = w->s->model;
    for (size_t i = 0; i < w->slots * m->heads * m->v; i++) {
        const float *const x = w->out + i / m->v * m->rank;
        const float *const row = c->w_v + (i / m->v % m->heads * m->v + i % m->v) * m->rank;
        double sum = 0, mass = 0, squares = 0;
        for (size_t k = 0; k < m->rank; k++) {
            const double product = (double)x[k] * (double)row[k];
            sum += product;
            mass += fabs(product);
            squares += product * product;
        }
        c->of_a[EXACT][i] = sum;
        c->of_a[SIZE][i] = fabs((double)c->values[i]);
        c->of_a[MASS][i] = mass;
        c->of_a[SQUARE][i] = sum * sum;
        c->of_a[VARIANCE][i] = variance_of(m->rank, 0, squares, sum);
    }
}

/* All elements of row `i` of W_o. */
static void judge_row(const work *w, cut *c, size_t i, tsr_kernel_tally *whole, tsr_kernel_tally *sum)
{
    const tsr_mla_model *const m = w->s->model;
    const size_t cols = m->heads * m->v, share = c->share * m->v;
    const size_t uncut = tsr_project_roundings(cols), cut_up = tsr_project_roundings(share) + c->ranks - 1;
    const double behind = kHigherOrders * kUnit * (double)(tsr_project_roundings(m->rank) + uncut);
    const double either = kHigherOrders * kUnit * (double)(uncut + cut_up);
    for (size_t k = 0; k < cols; k++) {
        c->row[k] = (double)c->w_o[i * cols + k];
        c->size[k] = fabs(c->row[k]);
        c->square[k] = c->row[k] * c->row[k];
    }
    for (size_t slot = 0; slot < w->slots; slot++) {
        const size_t at = slot * m->hidden + i, from = slot * cols;
        const double exact = tsr_dot(c->of_a[EXACT] + from, c->row, cols);
        const double squares = tsr_dot(c->of_a[SQUARE] + from, c->square, cols);
        const double variance = variance_of(cols, 0, squares, exact);
        c->x[at] = exact;
        c->y[at] = (double)c->uncut[at];
        tsr_kernel_tally_count(whole, fabs(exact - c->y[at]), behind * tsr_dot(c->of_a[MASS] + from, c->size, cols),
                               variance + tsr_dot(c->of_a[VARIANCE] + from, c->square, cols));
        tsr_kernel_tally_count(sum, fabs((double)c->parts[at] - c->y[at]),
                               either * tsr_dot(c->of_a[SIZE] + from, c->size, cols),
                               variance + variance_of(share, c->ranks - 1, squares, exact));
    }
}

/* The uncut output against the exact one; what the ranks added up to, against the uncut. */
static tsr_status judge_outputs(work *w, cut *c, const tsr_device_mla *kernel, double seconds, tsr_err *err)
{
    const size_t hidden = w->s->model->hidden, outputs = w->slots * hidden;
    char names[2][160];
    snprintf(names[0], sizeof names[0], "%s: W_v and W_o uncut, in FP32", kernel->name);
    snprintf(names[1], sizeof names[1], "%s, %zu ranks %s: sum against uncut", kernel->name, c->ranks, c->joined);
    tsr_kernel_tally whole = tsr_kernel_tally_begin(w->s->name, names[0], 0);
    tsr_kernel_tally sum = tsr_kernel_tally_begin(w->s->name, names[1], seconds);
    expand(w, c);
    for (size_t i = 0; i < hidden; i++)
        judge_row(w, c, i, &whole, &sum);
    tsr_judge(&whole.judgement, c->x, c->y, w->slots, hidden, NULL, NULL);
    for (size_t i = 0; i < outputs; i++)
        c->x[i] = (double)c->parts[i];
    tsr_judge(&sum.judgement, c->y, c->x, w->slots, hidden, NULL, NULL);
    const char *fault = "beyond what another order of summation can do";
    for (size_t r = 1; r < c->ranks; r++) {
        if (memcmp(c->parts, c->parts + r * outputs, outputs * sizeof *c->parts) != 0) {
            fault = "ranks hold different sums";
            sum.judgement.of_bound = INFINITY;
        }
    }
    TSR_TRY(
        end_tally(w, &whole, "beyond what its accumulation can do", "errors beyond those of its accumulation", err));
    return end_tally(w, &sum, fault, "errors beyond those of another order of summation", err);
}

static tsr_status run_ranks(work *w, cut *c, const tsr_device_mla *kernel, tsr_err *err)
{
    const size_t outputs = w->slots * w->s->model->hidden;
    char what[160];
    double decode = 0, reduce = 0;
    memset(w->out, 0xFF, w->slots * w->s->model->heads * w->s->model->rank * sizeof *w->out);
    for (size_t r = 0; r < c->ranks; r++) {
        const tsr_status status = run_rank(w, c, kernel, r, &decode, err);
        if (status == TSR_E_UNSUPPORTED)
            return TSR_OK; /* noted of the uncut one */
        TSR_TRY(status);
    }
    TSR_TRY(run_uncut(w, c, kernel, err));
    TSR_TRY(kernel->sum(kernel, c->ranks, c->parts, outputs, &reduce, err));
    lap(w, TSR_PHASE_KERNELS);
    snprintf(what, sizeof what, "%s, %zu ranks %s: their heads", kernel->name, c->ranks, c->joined);
    TSR_TRY(judge_decode(w, kernel, what, decode, err));
    return judge_outputs(w, c, kernel, reduce, err);
}

static tsr_status check_ranks(work *w, tsr_err *err)
{
    const tsr_device *const device = w->s->options->device;
    cut c = {0};
    bool told = false;
    TSR_TRY(open_cut(w, &c, err));
    for (size_t i = 0; i < device->n_mlas; i++) {
        const tsr_device_mla *const kernel = &device->mlas[i];
        tsr_err why = {{0}};
        snprintf(c.joined, sizeof c.joined, "in turn");
        const tsr_status status =
            kernel->spread == NULL ? TSR_OK : kernel->spread(kernel, c.ranks, c.joined, sizeof c.joined, &why);
        if (status != TSR_OK && status != TSR_E_DEVICE)
            return tsr_fail(err, status, "%s", why.msg);
        if (status == TSR_E_DEVICE && !told) {
            (void)tsr_prepend(&why, status, "ranks take turns on one GPU");
            TSR_TRY(tsr_evidence_skip(w->evidence, w->s->name, why.msg, err));
            told = true;
        }
        TSR_TRY(run_ranks(w, &c, kernel, err));
    }
    return TSR_OK;
}

/* ---- all of it ---- */

static tsr_status open_work(work *w, tsr_err *err)
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
    TSR_TRY(take(w, &w->q, w->slots * m->heads * w->width * sizeof *w->q, err));
    TSR_TRY(take(w, &w->cache, w->pages * PAGE * tsr_mla_cache_row_bytes(m->rank, m->rope, false), err));
    TSR_TRY(take(w, &w->table, b->sequences * w->max_pages * sizeof *w->table, err));
    TSR_TRY(take(w, &w->seqlens, b->sequences * sizeof *w->seqlens, err));
    TSR_TRY(take(w, &w->rows, b->tokens * w->width * sizeof *w->rows, err));
    TSR_TRY(take(w, &w->out, w->slots * m->heads * m->rank * sizeof *w->out, err));
    TSR_TRY(take(w, &w->scratch, w->width * sizeof *w->scratch, err));
    TSR_TRY(take(w, &w->exact, n * m->rank * sizeof *w->exact, err));
    TSR_TRY(take(w, &w->mass, n * m->rank * sizeof *w->mass, err));
    TSR_TRY(take(w, &w->square, n * m->rank * sizeof *w->square, err));
    TSR_TRY(take(w, &w->largest, n * sizeof *w->largest, err));
    TSR_TRY(take(w, &w->jitter, n * m->rank * sizeof *w->jitter, err));
    TSR_TRY(take(w, &w->got, n * m->rank * sizeof *w->got, err));
    TSR_TRY(take(w, &w->values, n * m->v * sizeof *w->values, err));
    memset(w->q, 0, w->slots * m->heads * w->width * sizeof *w->q);
    return TSR_OK;
}

static tsr_status check_cache(work *w, bool fp8, tsr_err *err)
{
    const tsr_device *const device = w->s->options->device;
    w->fp8 = fp8;
    TSR_TRY(fill(w, err));
    TSR_TRY(judge_cache(w, err));
    for (size_t i = 0; i < device->n_mlas; i++)
        TSR_TRY(run_kernel(w, &device->mlas[i], err));
    return TSR_OK;
}

static tsr_status check_all(work *w, tsr_err *err)
{
    TSR_TRY(open_work(w, err));
    TSR_TRY(check_cache(w, false, err));
    if (w->s->options->mla.ranks > 1)
        TSR_TRY(check_ranks(w, err));
    return w->s->options->mla.fp8_cache ? check_cache(w, true, err) : TSR_OK;
}

tsr_status tsr_mla_check_kernels(const tsr_mla_subject *subject, tsr_evidence *evidence, double *since, tsr_err *err)
{
    work w = {.s = subject, .evidence = evidence, .since = since};
    const tsr_status status = check_all(&w, err);
    tsr_arena_free(&w.arena);
    return status;
}
