/* Computes attention of a forward pass on a GPU: two products by cuBLAS around a softmax, for some queries at a time. */
#include "verify/forward/cuda/forward_cuda_parts.h"

#include "common/checked.h"
#include "kernels/cuda/forward_products.h"

enum { SCORES = 1 << 25 /* most scores in memory */ };

/* Operands for all tokens, and buffers for some queries. Heads that share keys are a group; its queries are the rows of one
 * product, as [tokens][share]. */
typedef struct attention {
    const tsr_gpu_ops *g;
    const tsr_op_attend *a;
    size_t share; /* heads of a group */
    void *q, *k, *v, *scores, *probabilities, *out, *sinks, *chosen;
} attention;

static const void *element(const attention *t, const void *x, size_t i)
{
    return (const char *)x + i * tsr_precision_bytes(t->g->precision);
}

/* Returns activations of `tokens` tokens, with `width` numbers for each group, and an array for them. */
static tsr_grouped grouped(const attention *t, const double *x, size_t ld, size_t tokens, size_t width, void *y)
{
    return (tsr_grouped){.x = (double *)(uintptr_t)x,
                         .ld = ld,
                         .tokens = tokens,
                         .groups = t->a->kv_heads,
                         .width = width,
                         .y = y,
                         .step = tokens * width};
}

/* Computes attention of queries [q0, q1) of the sequence whose first token is `begin`. */
static tsr_status attend_queries(const attention *t, size_t begin, size_t q0, size_t q1, tsr_err *err)
{
    static const tsr_token_choice kAll = {.groups = 1};
    const tsr_op_attend *const a = t->a;
    const tsr_gpu_ops *const g = t->g;
    const tsr_token_choice *const choice = a->chosen != NULL ? a->chosen : &kAll;
    const size_t k0 = q0 + 1 > a->window ? q0 + 1 - a->window : 0, keys = q1 - k0, queries = q1 - q0;
    const size_t rows = queries * t->share, n = a->tokens->count;
    const tsr_cublas_gemm by_keys = {.precision = g->precision,
                                     .a = element(t, t->q, (begin + q0) * t->share * a->dim),
                                     .b = element(t, t->k, (begin + k0) * a->dim),
                                     .c = t->scores,
                                     .m = rows,
                                     .n = keys,
                                     .k = a->dim,
                                     .lda = a->dim,
                                     .ldb = a->dim,
                                     .ldc = keys,
                                     .sums = true,
                                     .batch = a->kv_heads,
                                     .step_a = n * t->share * a->dim,
                                     .step_b = n * a->dim,
                                     .step_c = rows * keys};
    const tsr_attention_softmax softmax = {.precision = g->precision,
                                           .scores = t->scores,
                                           .probabilities = t->probabilities,
                                           .groups = a->kv_heads,
                                           .queries = queries,
                                           .share = t->share,
                                           .keys = keys,
                                           .first_query = q0,
                                           .first_key = k0,
                                           .window = a->window,
                                           .scale = a->scale,
                                           .cap = a->cap,
                                           .sinks = t->sinks,
                                           .chosen = t->chosen,
                                           .heads_of_choice = a->heads / choice->groups,
                                           .rows = choice->count,
                                           .first_row = begin + q0,
                                           .words = choice->words};
    const tsr_cublas_gemm by_values = {.precision = g->precision,
                                       .a = t->probabilities,
                                       .b = element(t, t->v, (begin + k0) * a->v_dim),
                                       .c = t->out,
                                       .m = rows,
                                       .n = a->v_dim,
                                       .k = keys,
                                       .lda = keys,
                                       .ldb = a->v_dim,
                                       .ldc = a->v_dim,
                                       .across = true,
                                       .batch = a->kv_heads,
                                       .step_a = rows * keys,
                                       .step_b = n * a->v_dim,
                                       .step_c = rows * a->v_dim};
    const tsr_grouped out =
        grouped(t, a->out + (begin + q0) * a->ld_out, a->ld_out, queries, t->share * a->v_dim, t->out);
    TSR_TRY(tsr_cublas_run(g->cublas, &by_keys, err));
    TSR_TRY(tsr_cuda_attention_softmax(&softmax, g->stream, err));
    TSR_TRY(tsr_cublas_run(g->cublas, &by_values, err));
    return tsr_cuda_ungroup(&out, g->precision, false, g->stream, err);
}

/* Allocates and fills an operand. */
static tsr_status make_operand(const attention *t, const double *x, size_t ld, size_t width, void **y, tsr_err *err)
{
    const size_t n = t->a->tokens->count;
    TSR_TRY(tsr_stream_allocate(t->g, n * t->a->kv_heads * width * tsr_precision_bytes(t->g->precision), y, err));
    const tsr_grouped args = grouped(t, x, ld, n, width, *y);
    return tsr_cuda_group(&args, t->g->precision, t->g->stream, err);
}

static tsr_status make_buffers(attention *t, size_t queries, tsr_err *err)
{
    const tsr_gpu_ops *const g = t->g;
    const tsr_op_attend *const a = t->a;
    const size_t kv = a->kv_heads, scores = a->heads * queries * a->tokens->longest,
                 bytes = tsr_precision_bytes(g->precision);
    TSR_TRY(make_operand(t, a->q, a->ld_q, t->share * a->dim, &t->q, err));
    TSR_TRY(make_operand(t, a->k, kv * a->dim, a->dim, &t->k, err));
    TSR_TRY(make_operand(t, a->v, kv * a->v_dim, a->v_dim, &t->v, err));
    TSR_TRY(tsr_stream_allocate(g, scores * tsr_precision_bytes(tsr_precision_of_sums(g->precision)), &t->scores, err));
    TSR_TRY(tsr_stream_allocate(g, scores * bytes, &t->probabilities, err));
    TSR_TRY(tsr_stream_allocate(g, queries * a->heads * a->v_dim * bytes, &t->out, err));
    TSR_TRY(tsr_stream_lend(g, a->sinks, a->heads * sizeof *a->sinks, &t->sinks, err));
    if (a->chosen == NULL)
        return TSR_OK;
    const size_t words = a->chosen->groups * a->chosen->count * a->chosen->words;
    return tsr_stream_lend(g, a->chosen->bits, words * sizeof *a->chosen->bits, &t->chosen, err);
}

tsr_status tsr_gpu_attend(tsr_ops *ops, const tsr_op_attend *a, tsr_err *err)
{
    const size_t longest = a->tokens->longest;
    const size_t at_once = (size_t)tsr_min_u64(tsr_max_u64(SCORES / (a->heads * longest), 1), longest);
    attention t = {.g = tsr_use_gpu(ops), .a = a, .share = a->heads / a->kv_heads};
    tsr_status status = make_buffers(&t, at_once, err);
    for (size_t s = 0; s < a->tokens->sequences; s++) {
        const size_t begin = a->tokens->first[s], length = a->tokens->first[s + 1] - begin;
        for (size_t q = 0; status == TSR_OK && q < length; q += at_once)
            status = attend_queries(&t, begin, q, (size_t)tsr_min_u64(q + at_once, length), err);
    }
    void *const all[] = {t.q, t.k, t.v, t.scores, t.probabilities, t.out, t.sinks, t.chosen};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tsr_stream_release(t.g, all[i]);
    return status;
}
