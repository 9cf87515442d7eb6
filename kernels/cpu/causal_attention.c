/* Defines causal attention in plain loops, as the reference for faster kernels. */
#include "kernels/cpu/causal_attention.h"

#include "common/float_bits.h"
#include "kernels/cpu/attention_body.h"

/* Computes one query of one head over the tokens [from, to). */
static void attend(const tsr_causal_attention *a, size_t query, size_t h, size_t from, size_t to)
{
    const uint16_t *const q = a->q + (query * a->heads + h) * (a->nope + a->rope);
    tsr_softmax softmax = tsr_softmax_begin(a->out + (query * a->heads + h) * a->value, a->value);
    for (size_t t = from; t < to; t++) {
        const uint16_t *const k = a->kv + (t * a->heads + h) * (a->nope + a->value), *const v = k + a->nope;
        const uint16_t *const k_rope = a->k_rope + t * a->rope;
        float score = 0;
        for (size_t i = 0; i < a->nope; i++)
            score += tsr_f32_from_bf16(q[i]) * tsr_f32_from_bf16(k[i]);
        for (size_t i = 0; i < a->rope; i++)
            score += tsr_f32_from_bf16(q[a->nope + i]) * tsr_f32_from_bf16(k_rope[i]);
        const float p = tsr_softmax_weigh(&softmax, score * a->scale);
        for (size_t i = 0; i < a->value; i++)
            softmax.out[i] += p * tsr_f32_from_bf16(v[i]);
    }
    tsr_softmax_end(&softmax);
}

void tsr_causal_attention_run(const tsr_causal_attention *a)
{
    for (size_t b = 0; b < a->batch; b++) {
        const size_t from = (size_t)a->cu_seqlens_k[b], end = (size_t)a->cu_seqlens_k[b + 1];
        const size_t first = (size_t)a->cu_seqlens_q[b], last = (size_t)a->cu_seqlens_q[b + 1];
        for (size_t query = first; query < last; query++) {
            const size_t hidden = last - 1 - query; /* tokens after the query */
            for (size_t h = 0; h < a->heads; h++)
                attend(a, query, h, from, end - from > hidden ? end - hidden : from);
        }
    }
}
