/* Runs the operations of recurrent layers on a GPU. */
#include "verify/forward/cuda/forward_cuda_parts.h"

#include "kernels/cuda/recurrent.h"

#include <stdlib.h>

tsr_status tsr_gpu_convolve(tsr_ops *ops, const tsr_op_convolve *a, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const size_t rows = a->tokens->count;
    uint32_t *const places = malloc((rows + 1) * sizeof *places);
    void *weight = NULL, *bias = NULL, *there = NULL;
    tsr_status status = places == NULL ? tsr_out_of_memory(err, "for positions") : TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < rows; i++)
        places[i] = (uint32_t)tsr_token_position(a->tokens, i);
    if (status == TSR_OK)
        status = tsr_stream_lend(g, places, rows * sizeof *places, &there, err);
    if (status == TSR_OK)
        status = tsr_stream_lend(g, a->weight, a->channels * a->taps * sizeof(double), &weight, err);
    if (status == TSR_OK)
        status = tsr_stream_lend(g, a->bias, a->channels * sizeof(double), &bias, err);
    const tsr_act_convolve args = {a->x, a->y, weight, bias, there, rows, a->channels, a->taps};
    if (status == TSR_OK)
        status = tsr_cuda_act_convolve(&args, g->of_activations, g->stream, err);
    tsr_stream_release(g, weight);
    tsr_stream_release(g, bias);
    tsr_stream_release(g, there);
    free(places);
    return status;
}

tsr_status tsr_gpu_recur(tsr_ops *ops, const tsr_op_recur *a, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_tokens *const t = a->tokens;
    void *first = NULL, *rate = NULL, *shift = NULL, *skip = NULL, *states = NULL;
    tsr_status status = tsr_stream_lend(g, t->first, (t->sequences + 1) * sizeof *t->first, &first, err);
    if (status == TSR_OK)
        status = tsr_stream_lend(g, a->rate, a->heads * sizeof(double), &rate, err);
    if (status == TSR_OK)
        status = tsr_stream_lend(g, a->shift, a->heads * a->decays * sizeof(double), &shift, err);
    if (status == TSR_OK)
        status = tsr_stream_lend(g, a->skip, a->heads * sizeof(double), &skip, err);
    if (status == TSR_OK)
        status = tsr_stream_allocate(g, t->sequences * a->heads * a->dim * a->v_dim * sizeof(double), &states, err);
    const tsr_act_recur args = {.scan = a->kind == TSR_RECUR_SCAN,
                                .least = a->least,
                                .skip = skip,
                                .q = a->q,
                                .k = a->k,
                                .v = a->v,
                                .decay = a->decay,
                                .beta = a->beta,
                                .rate = rate,
                                .shift = shift,
                                .out = a->out,
                                .states = states,
                                .first = first,
                                .sequences = t->sequences,
                                .heads = a->heads,
                                .k_heads = a->k_heads,
                                .dim = a->dim,
                                .v_dim = a->v_dim,
                                .decays = a->decays};
    if (status == TSR_OK)
        status = tsr_cuda_act_recur(&args, g->of_activations, g->stream, err);
    tsr_stream_release(g, first);
    tsr_stream_release(g, rate);
    tsr_stream_release(g, shift);
    tsr_stream_release(g, skip);
    tsr_stream_release(g, states);
    return status;
}
