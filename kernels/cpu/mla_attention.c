/* Reads and writes rows of the cache, and computes attention over them. */
#include "kernels/cpu/mla_attention.h"

#include "common/float_bits.h"
#include "kernels/cpu/attention_body.h"

#include <math.h>
#include <string.h>

static const float kFloor = 1e-4f;

size_t tsr_mla_cache_row_bytes(size_t latent, size_t rope, bool fp8)
{
    return 2 * rope + (fp8 ? latent + latent / TSR_MLA_CACHE_GROUP * sizeof(float) : 2 * latent);
}

void tsr_mla_cache_write(const float *values, size_t latent, size_t rope, bool fp8, uint8_t *row)
{
    const size_t coded = fp8 ? latent : 0;
    uint8_t *tail = row + coded;
    for (size_t at = 0; at < coded; at += TSR_MLA_CACHE_GROUP) {
        float amax = 0;
        for (size_t i = 0; i < TSR_MLA_CACHE_GROUP; i++)
            amax = fmaxf(amax, fabsf(values[at + i]));
        int exponent;
        const float mantissa = frexpf(fmaxf(amax / TSR_E4M3_MAX, kFloor), &exponent);
        const float scale = ldexpf(1, mantissa == 0.5f ? exponent - 1 : exponent);
        for (size_t i = 0; i < TSR_MLA_CACHE_GROUP; i++)
            row[at + i] = tsr_e4m3_from_f32(values[at + i] / scale);
        memcpy(tail, &scale, sizeof scale);
        tail += sizeof scale;
    }
    for (size_t i = coded; i < latent + rope; i++, tail += 2) {
        const uint16_t x = tsr_bf16_from_f32(values[i]);
        memcpy(tail, &x, sizeof x);
    }
}

void tsr_mla_cache_read(const uint8_t *row, size_t latent, size_t rope, bool fp8, float *values)
{
    const size_t coded = fp8 ? latent : 0;
    const uint8_t *tail = row + coded;
    for (size_t at = 0; at < coded; at += TSR_MLA_CACHE_GROUP) {
        float scale;
        memcpy(&scale, tail, sizeof scale);
        tail += sizeof scale;
        for (size_t i = 0; i < TSR_MLA_CACHE_GROUP; i++)
            values[at + i] = tsr_e4m3_to_f32(row[at + i]) * scale;
    }
    for (size_t i = coded; i < latent + rope; i++, tail += 2) {
        uint16_t x;
        memcpy(&x, tail, sizeof x);
        values[i] = tsr_f32_from_bf16(x);
    }
}

/* Returns the row of the cache that is number t of a query's tokens, or a negative number if there is none. */
static ptrdiff_t row_of(const tsr_mla_attention *a, size_t query, size_t t)
{
    if (a->indices != NULL)
        return a->indices[query * a->top_k + t];
    const int32_t page = a->block_table[query / a->s_q * a->max_pages + t / a->page];
    return (ptrdiff_t)((size_t)page * a->page + t % a->page);
}

static void attend(const tsr_mla_attention *a, size_t query, const uint16_t *q, size_t tokens, float *out)
{
    const size_t bytes = tsr_mla_cache_row_bytes(a->latent, a->rope, a->fp8);
    tsr_softmax softmax = tsr_softmax_begin(out, a->latent);
    for (size_t t = 0; t < tokens; t++) {
        const ptrdiff_t row = row_of(a, query, t);
        float score = 0;
        if (row < 0)
            continue;
        tsr_mla_cache_read(a->cache + (size_t)row * bytes, a->latent, a->rope, a->fp8, a->row);
        for (size_t i = 0; i < a->latent + a->rope; i++)
            score += tsr_f32_from_bf16(q[i]) * a->row[i];
        const float p = tsr_softmax_weigh(&softmax, score * a->scale);
        for (size_t i = 0; i < a->latent; i++)
            out[i] += p * a->row[i];
    }
    tsr_softmax_end(&softmax);
}

/* Returns the number of tokens that a query sees, or the length of its list. */
static size_t tokens_of(const tsr_mla_attention *a, size_t query)
{
    if (a->indices != NULL)
        return a->top_k;
    const size_t last = (size_t)a->seqlens[query / a->s_q] + query % a->s_q + 1;
    return last > a->s_q ? last - a->s_q : 0;
}

void tsr_mla_attention_run(const tsr_mla_attention *a)
{
    const size_t width = a->latent + a->rope;
    for (size_t at = 0; at < a->batch * a->s_q * a->heads; at++) {
        const size_t query = at / a->heads;
        attend(a, query, a->q + at * width, tokens_of(a, query), a->out + at * a->latent);
    }
}
