/* Computes attention of a forward pass on a GPU: in BF16 by one kernel if it can, which keeps scores in registers, and
 * otherwise by two products of cuBLAS around a softmax, for some queries at a time. */
#include "verify/forward/cuda/forward_cuda_parts.h"

#include "common/checked.h"
#include "kernels/cuda/forward_products.h"
#include "kernels/cuda/prefill.h"

#include <stdlib.h>

enum { SCORES = 1 << 25 /* most scores in memory */ };

/* ---- products around a softmax ---- */

/* Operands for all tokens, and buffers for some queries. Heads that share keys are a group; its queries are the rows of
 * one product, as [tokens][share]. */
typedef struct attention {
    const tsr_ops *ops;
    const tsr_gpu_ops *g;
    const tsr_op_attend *a;
    size_t share; /* heads of a group */
    void *q, *k, *v, *entries, *scores, *probabilities, *out, *sinks, *chosen;
} attention;

static const void *element(const attention *t, const void *x, size_t i)
{
    return (const char *)x + i * tsr_precision_bytes(t->g->precision);
}

/* Returns activations of `tokens` tokens, with `width` numbers for each group, and an array for them. */
static tsr_grouped grouped(const attention *t, const tsr_activation *x, size_t ld, size_t tokens, size_t width, void *y)
{
    return (tsr_grouped){.x = tsr_at(t->ops, x, 0),
                         .ld = ld,
                         .tokens = tokens,
                         .groups = t->a->kv_heads,
                         .width = width,
                         .y = y,
                         .pitch = width,
                         .step = tokens * width};
}

/* Some queries of one sequence, the keys that they see, and the entries. */
typedef struct span {
    size_t begin, q0, q1; /* first token of the sequence; positions of the queries */
    size_t k0, keys;      /* position of the first key, and number of keys */
    size_t entry, entries;
} span;

static span span_of(const tsr_op_attend *a, size_t s, size_t q0, size_t q1)
{
    const tsr_op_entries *const e = &a->entries;
    const size_t k0 = q0 + 1 > a->window ? q0 + 1 - a->window : 0;
    return (span){.begin = a->tokens->first[s],
                  .q0 = q0,
                  .q1 = q1,
                  .k0 = k0,
                  .keys = q1 - k0,
                  .entry = e->x == NULL ? 0 : e->tokens->first[s],
                  .entries = e->x == NULL ? 0 : q1 / e->rate};
}

/* Computes scores of the queries: columns [0, keys) for tokens, and those behind them for entries. */
static tsr_status score(const attention *t, const span *p, tsr_err *err)
{
    const tsr_op_attend *const a = t->a;
    const size_t n = a->tokens->count, rows = (p->q1 - p->q0) * t->share, columns = p->keys + p->entries;
    tsr_cublas_gemm gemm = {.precision = t->g->precision,
                            .a = element(t, t->q, (p->begin + p->q0) * t->share * a->dim),
                            .b = element(t, t->k, (p->begin + p->k0) * a->dim),
                            .c = t->scores,
                            .m = rows,
                            .n = p->keys,
                            .k = a->dim,
                            .lda = a->dim,
                            .ldb = a->dim,
                            .ldc = columns,
                            .sums = true,
                            .batch = a->kv_heads,
                            .step_a = n * t->share * a->dim,
                            .step_b = n * a->dim,
                            .step_c = rows * columns};
    TSR_TRY(tsr_cublas_run(t->g->cublas, &gemm, err));
    gemm.b = element(t, t->entries, p->entry * a->dim);
    gemm.c = (char *)t->scores + p->keys * tsr_precision_bytes(tsr_precision_of_sums(t->g->precision));
    gemm.n = p->entries;
    return p->entries == 0 ? TSR_OK : tsr_cublas_run(t->g->cublas, &gemm, err);
}

static tsr_status soften(const attention *t, const span *p, tsr_err *err)
{
    static const tsr_token_choice kAll = {.groups = 1};
    const tsr_op_attend *const a = t->a;
    const tsr_token_choice *const choice = a->chosen != NULL ? a->chosen : &kAll;
    const tsr_attention_softmax softmax = {.precision = t->g->precision,
                                           .scores = t->scores,
                                           .probabilities = t->probabilities,
                                           .groups = a->kv_heads,
                                           .queries = p->q1 - p->q0,
                                           .share = t->share,
                                           .keys = p->keys + p->entries,
                                           .first_query = p->q0,
                                           .first_key = p->k0,
                                           .window = a->window,
                                           .scale = a->scale,
                                           .cap = a->cap,
                                           .sinks = t->sinks,
                                           .chosen = t->chosen,
                                           .heads_of_choice = a->heads / choice->groups,
                                           .rows = choice->count,
                                           .first_row = p->begin + p->q0,
                                           .words = choice->words,
                                           .entries = p->entries,
                                           .rate = a->entries.x == NULL ? 0 : a->entries.rate};
    return tsr_cuda_attention_softmax(&softmax, t->g->stream, err);
}

/* Adds up values by their probabilities, and stores the sums. */
static tsr_status add_values(const attention *t, const span *p, tsr_err *err)
{
    const tsr_op_attend *const a = t->a;
    const size_t n = a->tokens->count, queries = p->q1 - p->q0, rows = queries * t->share,
                 columns = p->keys + p->entries;
    tsr_cublas_gemm gemm = {.precision = t->g->precision,
                            .a = t->probabilities,
                            .b = element(t, t->v, (p->begin + p->k0) * a->v_dim),
                            .c = t->out,
                            .m = rows,
                            .n = a->v_dim,
                            .k = p->keys,
                            .lda = columns,
                            .ldb = a->v_dim,
                            .ldc = a->v_dim,
                            .sums = true,
                            .across = true,
                            .batch = a->kv_heads,
                            .step_a = rows * columns,
                            .step_b = n * a->v_dim,
                            .step_c = rows * a->v_dim};
    const tsr_grouped out = grouped(t, tsr_at(t->ops, a->out, (p->begin + p->q0) * a->ld_out), a->ld_out, queries,
                                    t->share * a->v_dim, t->out);
    TSR_TRY(tsr_cublas_run(t->g->cublas, &gemm, err));
    gemm.a = element(t, t->probabilities, p->keys);
    gemm.b = element(t, t->entries, p->entry * a->dim);
    gemm.k = p->entries;
    gemm.add = true;
    if (p->entries > 0)
        TSR_TRY(tsr_cublas_run(t->g->cublas, &gemm, err));
    return tsr_cuda_ungroup(&out, tsr_precision_of_sums(t->g->precision), t->g->stream, err);
}

/* Computes attention of queries [q0, q1) of sequence s. */
static tsr_status attend_queries(const attention *t, size_t s, size_t q0, size_t q1, tsr_err *err)
{
    const span p = span_of(t->a, s, q0, q1);
    TSR_TRY(score(t, &p, err));
    TSR_TRY(soften(t, &p, err));
    return add_values(t, &p, err);
}

/* Allocates and fills an operand of n tokens or entries. */
static tsr_status make_operand(const attention *t, const tsr_activation *x, size_t ld, size_t n, size_t width, void **y,
                               tsr_err *err)
{
    TSR_TRY(tsr_stream_allocate(t->g, n * t->a->kv_heads * width * tsr_precision_bytes(t->g->precision), y, err));
    const tsr_grouped args = grouped(t, x, ld, n, width, *y);
    return tsr_cuda_group(&args, t->g->precision, t->g->stream, err);
}

/* Returns the most keys and entries of a query. */
static size_t most_keys(const tsr_op_attend *a)
{
    return a->tokens->longest + (a->entries.x == NULL ? 0 : a->entries.tokens->longest);
}

static tsr_status make_buffers(attention *t, size_t queries, tsr_err *err)
{
    const tsr_gpu_ops *const g = t->g;
    const tsr_op_attend *const a = t->a;
    const size_t kv = a->kv_heads, n = a->tokens->count, scores = a->heads * queries * most_keys(a);
    const size_t of_sums = tsr_precision_bytes(tsr_precision_of_sums(g->precision));
    TSR_TRY(make_operand(t, a->q, a->ld_q, n, t->share * a->dim, &t->q, err));
    TSR_TRY(make_operand(t, a->k, kv * a->dim, n, a->dim, &t->k, err));
    TSR_TRY(make_operand(t, a->v, kv * a->v_dim, n, a->v_dim, &t->v, err));
    if (a->entries.x != NULL)
        TSR_TRY(make_operand(t, a->entries.x, a->dim, a->entries.tokens->count, a->dim, &t->entries, err));
    TSR_TRY(tsr_stream_allocate(g, scores * of_sums, &t->scores, err));
    TSR_TRY(tsr_stream_allocate(g, scores * tsr_precision_bytes(g->precision), &t->probabilities, err));
    TSR_TRY(tsr_stream_allocate(g, queries * a->heads * a->v_dim * of_sums, &t->out, err));
    TSR_TRY(tsr_stream_lend(g, a->sinks, a->heads * sizeof *a->sinks, &t->sinks, err));
    if (a->chosen == NULL)
        return TSR_OK;
    const size_t words = a->chosen->groups * a->chosen->count * a->chosen->words;
    return tsr_stream_lend(g, a->chosen->bits, words * sizeof *a->chosen->bits, &t->chosen, err);
}

static tsr_status attend_in_steps(tsr_ops *ops, const tsr_op_attend *a, tsr_err *err)
{
    const size_t longest = a->tokens->longest;
    const size_t at_once = (size_t)tsr_min_u64(tsr_max_u64(SCORES / (a->heads * most_keys(a)), 1), longest);
    attention t = {.ops = ops, .g = tsr_use_gpu(ops), .a = a, .share = a->heads / a->kv_heads};
    tsr_status status = make_buffers(&t, at_once, err);
    for (size_t s = 0; s < a->tokens->sequences; s++) {
        const size_t length = a->tokens->first[s + 1] - a->tokens->first[s];
        for (size_t q = 0; status == TSR_OK && q < length; q += at_once)
            status = attend_queries(&t, s, q, (size_t)tsr_min_u64(q + at_once, length), err);
    }
    void *const all[] = {t.q, t.k, t.v, t.entries, t.scores, t.probabilities, t.out, t.sinks, t.chosen};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tsr_stream_release(t.g, all[i]);
    return status;
}

/* ---- one kernel ---- */

typedef struct prefill {
    const tsr_ops *ops;
    const tsr_gpu_ops *g;
    const tsr_op_attend *a;
    tsr_prefill args;
    void *q, *kv, *k_rope, *ends, *out, *workspace;
} prefill;

static prefill prefill_of(const tsr_ops *ops, const tsr_gpu_ops *g, const tsr_op_attend *a)
{
    const int64_t tokens = (int64_t)a->tokens->count;
    return (prefill){.ops = ops,
                     .g = g,
                     .a = a,
                     .args = {.batch = (int64_t)a->tokens->sequences,
                              .heads = (int64_t)a->heads,
                              .kv_heads = (int64_t)a->kv_heads,
                              .tokens_q = tokens,
                              .tokens_k = tokens,
                              .nope = (int32_t)(a->dim - a->common),
                              .rope = (int32_t)a->common,
                              .value = (int32_t)a->v_dim,
                              .scale = (float)a->scale}};
}

/* Returns true if the kernel computes this attention on the current GPU. */
static bool fits(const prefill *p)
{
    const tsr_op_attend *const a = p->a;
    tsr_cuda_device device;
    return p->g->precision == TSR_PRECISION_BF16 && a->window >= a->tokens->longest && a->cap == 0 &&
           a->sinks == NULL && a->chosen == NULL && a->entries.x == NULL && a->tokens->count < INT32_MAX &&
           p->args.scale > 0 && tsr_cuda_current_device(&device, NULL) == TSR_OK &&
           tsr_cuda_prefill_choose(&p->args, &device) == TSR_MLA_FAST;
}

/* Converts columns [from, from + width) of `rows` rows, ld apart, to columns [to, ...) of rows of y, pitch apart. */
static tsr_status convert(const prefill *p, const tsr_activation *x, size_t from, size_t ld, size_t rows, size_t width,
                          void *y, size_t to, size_t pitch, tsr_err *err)
{
    const tsr_grouped args = {.x = tsr_at(p->ops, x, from),
                              .ld = ld,
                              .tokens = rows,
                              .groups = 1,
                              .width = width,
                              .y = (uint16_t *)y + to,
                              .pitch = pitch};
    return tsr_cuda_group(&args, TSR_PRECISION_BF16, p->g->stream, err);
}

static tsr_status make_operands(prefill *p, tsr_err *err)
{
    const tsr_op_attend *const a = p->a;
    const size_t n = a->tokens->count, own = a->dim - a->common, pair = own + a->v_dim, rows = n * a->kv_heads,
                 width = a->heads * a->dim;
    TSR_TRY(tsr_stream_allocate(p->g, n * width * sizeof(uint16_t), &p->q, err));
    TSR_TRY(tsr_stream_allocate(p->g, rows * pair * sizeof(uint16_t), &p->kv, err));
    TSR_TRY(tsr_stream_allocate(p->g, n * a->common * sizeof(uint16_t), &p->k_rope, err));
    TSR_TRY(convert(p, a->q, 0, a->ld_q, n, width, p->q, 0, width, err));
    TSR_TRY(convert(p, a->k, 0, a->dim, rows, own, p->kv, 0, pair, err));
    TSR_TRY(convert(p, a->v, 0, a->v_dim, rows, a->v_dim, p->kv, own, pair, err));
    return convert(p, a->k, own, a->kv_heads * a->dim, n, a->common, p->k_rope, 0, a->common, err);
}

/* Brings the first tokens of the sequences, as the kernel expects them. */
static tsr_status bring_ends(prefill *p, tsr_err *err)
{
    const tsr_tokens *const tokens = p->a->tokens;
    int32_t *const ends = malloc((tokens->sequences + 1) * sizeof *ends);
    if (ends == NULL)
        return tsr_out_of_memory(err, "for attention");
    for (size_t s = 0; s <= tokens->sequences; s++)
        ends[s] = (int32_t)tokens->first[s];
    const tsr_status status = tsr_stream_lend(p->g, ends, (tokens->sequences + 1) * sizeof *ends, &p->ends, err);
    free(ends);
    return status;
}

static tsr_status run_prefill(prefill *p, tsr_err *err)
{
    const tsr_op_attend *const a = p->a;
    const size_t n = a->tokens->count, width = a->heads * a->v_dim;
    tsr_cuda_device device;
    TSR_TRY(tsr_cuda_current_device(&device, err));
    TSR_TRY(make_operands(p, err));
    TSR_TRY(bring_ends(p, err));
    TSR_TRY(tsr_stream_allocate(p->g, tsr_cuda_prefill_workspace(&p->args, &device), &p->workspace, err));
    if (a->ld_out != width)
        TSR_TRY(tsr_stream_allocate(p->g, n * width * sizeof(float), &p->out, err));
    p->args.q = p->q;
    p->args.kv = p->kv;
    p->args.k_rope = p->k_rope;
    p->args.cu_seqlens_q = p->args.cu_seqlens_k = p->ends;
    p->args.out_f32 = p->out != NULL ? p->out : (void *)a->out;
    p->args.workspace = p->workspace;
    TSR_TRY(tsr_cuda_prefill_plan(&p->args, p->g->stream, err));
    TSR_TRY(tsr_cuda_prefill(&p->args, p->g->stream, err));
    const tsr_act_rows rows = {.y = a->out, .x = p->out, .rows = n, .n = width, .ld_y = a->ld_out, .ld_x = width};
    return p->out == NULL ? TSR_OK : tsr_cuda_act_rows(&rows, TSR_PRECISION_FP32, p->g->stream, err);
}

tsr_status tsr_gpu_attend(tsr_ops *ops, const tsr_op_attend *a, tsr_err *err)
{
    prefill p = prefill_of(ops, tsr_use_gpu(ops), a);
    if (!fits(&p))
        return attend_in_steps(ops, a, err);
    const tsr_status status = run_prefill(&p, err);
    void *const all[] = {p.q, p.kv, p.k_rope, p.ends, p.out, p.workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tsr_stream_release(p.g, all[i]);
    return status;
}
