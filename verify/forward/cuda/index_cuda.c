/* Computes the scores of an indexer on a GPU, as one product for all heads and a sum over them, in the precision of activations. */
#include "verify/forward/cuda/forward_cuda_parts.h"

tsr_status tsr_gpu_index(tsr_ops *ops, const tsr_op_index *a, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const size_t width = a->heads * a->dim, each = a->queries * a->keys;
    void *of_heads = NULL;
    tsr_status status = TSR_OK;
    if (a->weights != NULL)
        status = tsr_stream_allocate(g, a->heads * each * ops->element, &of_heads, err);
    const tsr_cublas_gemm gemm = {.precision = g->of_activations,
                                  .a = tsr_at(ops, a->q, a->first * width),
                                  .b = tsr_at(ops, a->k, a->begin * a->dim),
                                  .c = a->weights != NULL ? of_heads : (void *)a->scores,
                                  .m = a->queries,
                                  .n = a->keys,
                                  .k = a->dim,
                                  .lda = width,
                                  .ldb = a->dim,
                                  .ldc = a->keys,
                                  .batch = a->heads,
                                  .step_a = a->dim,
                                  .step_c = each};
    const tsr_activation *const weights = a->weights == NULL ? NULL : tsr_at(ops, a->weights, a->first * a->heads);
    const tsr_act_index index = {of_heads, weights, a->scores, a->heads, a->queries, a->keys};
    if (status == TSR_OK)
        status = tsr_cublas_run(g->cublas, &gemm, err);
    if (status == TSR_OK && a->weights != NULL)
        status = tsr_cuda_act_index(&index, g->of_activations, g->stream, err);
    tsr_stream_release(g, of_heads);
    return status;
}
