/* Computes the scores of an indexer on the CPU. */
#include "verify/forward/forward_ops.h"

#include "common/parallel/parallel_for.h"
#include "verify/mla/index_query.h"

/* Stores the scores of a query for each head. */
static void score_heads(const tsr_op_index *a, const tsr_index_query *x, size_t query)
{
    for (size_t h = 0; h < x->heads; h++) {
        double *const scores = tsr_doubles(a->scores) + (h * a->queries + query) * a->keys;
        for (size_t j = 0; j < x->keys; j++)
            scores[j] = tsr_dot(x->q + h * x->dim, x->k + j * x->dim, x->dim);
    }
}

static tsr_status score_query(void *context, size_t i, size_t worker, tsr_err *err)
{
    const tsr_op_index *const a = context;
    const size_t token = a->first + i;
    double *const scores = tsr_doubles(a->scores) + i * a->keys;
    tsr_index_query x = {.q = tsr_doubles(a->q) + token * a->heads * a->dim,
                         .k = tsr_doubles(a->k) + a->begin * a->dim,
                         .heads = a->heads,
                         .dim = a->dim,
                         .keys = (a->position + i + 1) / a->rate};
    (void)worker, (void)err;
    if (a->weights == NULL) {
        score_heads(a, &x, i);
        return TSR_OK;
    }
    x.weights = tsr_doubles(a->weights) + token * a->heads;
    tsr_index_score(&x, scores);
    for (size_t j = x.keys; j < a->keys; j++)
        scores[j] = 0;
    return TSR_OK;
}

tsr_status tsr_cpu_index(tsr_ops *ops, const tsr_op_index *a, tsr_err *err)
{
    tsr_op_index args = *a;
    return tsr_parallel_for(a->queries, ops->threads, ops->cancel, score_query, &args, err);
}
