/* Computes the scores of an indexer and the entries of compressed caches on a GPU, in the precision of activations. */
#include "verify/forward/cuda/forward_cuda_parts.h"

#include <stdlib.h>

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

/* Sets the first token of each entry, and its number in its sequence. */
static void locate_entries(const tsr_op_compress *a, uint32_t *token, uint32_t *number)
{
    for (size_t s = 0; s < a->entries->sequences; s++) {
        const size_t first = a->entries->first[s];
        for (size_t e = first; e < a->entries->first[s + 1]; e++) {
            number[e] = (uint32_t)(e - first);
            token[e] = (uint32_t)(a->tokens->first[s] + (e - first) * a->rate);
        }
    }
}

tsr_status tsr_gpu_compress(tsr_ops *ops, const tsr_op_compress *a, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const size_t n = a->entries->count, width = a->overlaps ? 2 * a->dim : a->dim;
    uint32_t *const host = malloc((2 * n + 1) * sizeof *host);
    void *there = NULL, *bias = NULL;
    tsr_status status = host == NULL ? tsr_out_of_memory(err, "for positions") : TSR_OK;
    if (status == TSR_OK) {
        locate_entries(a, host, host + n);
        status = tsr_stream_lend(g, host, 2 * n * sizeof *host, &there, err);
    }
    if (status == TSR_OK)
        status = tsr_stream_lend(g, a->bias, a->rate * width * sizeof *a->bias, &bias, err);
    const tsr_act_compress args = {.values = a->values,
                                   .gates = a->gates,
                                   .bias = bias,
                                   .token = there,
                                   .number = (const uint32_t *)there + n,
                                   .out = a->out,
                                   .entries = n,
                                   .dim = a->dim,
                                   .rate = a->rate,
                                   .overlaps = a->overlaps};
    if (status == TSR_OK)
        status = tsr_cuda_act_compress(&args, g->of_activations, g->stream, err);
    tsr_stream_release(g, there);
    tsr_stream_release(g, bias);
    free(host);
    return status;
}
