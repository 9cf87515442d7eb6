/* Computes the scores of an indexer on the CPU. */
#include "verify/forward/forward_ops.h"

#include "common/parallel/parallel_for.h"

/* Adds the weighted scores of one query and head, or stores them if there are no weights. */
static void score_head(const tsr_op_index *a, size_t query, size_t head)
{
    const size_t token = a->first + query, visible = (a->position + query + 1) / a->rate;
    const double *const q = tsr_doubles(a->q) + (token * a->heads + head) * a->dim, *const k = tsr_doubles(a->k) +
                                                                                               a->begin * a->dim;
    double *const scores = tsr_doubles(a->scores) + ((a->weights != NULL ? 0 : head * a->queries) + query) * a->keys;
    for (size_t j = 0; j < visible; j++) {
        const double score = tsr_dot(q, k + j * a->dim, a->dim);
        if (a->weights == NULL)
            scores[j] = score;
        else
            scores[j] += score < 0 ? 0 : tsr_doubles(a->weights)[token * a->heads + head] * score;
    }
}

static tsr_status score_query(void *context, size_t i, size_t worker, tsr_err *err)
{
    const tsr_op_index *const a = context;
    (void)worker, (void)err;
    for (size_t j = 0; j < a->keys && a->weights != NULL; j++)
        tsr_doubles(a->scores)[i * a->keys + j] = 0;
    for (size_t h = 0; h < a->heads; h++)
        score_head(a, i, h);
    return TSR_OK;
}

tsr_status tsr_cpu_index(tsr_ops *ops, const tsr_op_index *a, tsr_err *err)
{
    tsr_op_index args = *a;
    return tsr_parallel_for(a->queries, ops->threads, ops->cancel, score_query, &args, err);
}
