/* The step that both attentions of the CPU are made of; for their .c files only. */
#ifndef TSR_KERNELS_CPU_ATTENTION_BODY_H
#define TSR_KERNELS_CPU_ATTENTION_BODY_H

#include "common/float_bits.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A softmax under way: `sum` of exp(score - most), and in out[n] the values weighted likewise. */
typedef struct tsr_softmax {
    float most, sum;
    float *out;
    size_t n;
} tsr_softmax;

static inline tsr_softmax tsr_softmax_begin(float *out, size_t n)
{
    memset(out, 0, n * sizeof *out);
    return (tsr_softmax){-INFINITY, 0, out, n};
}

/* The weight of the next token, which is to be added times its values; earlier ones are rescaled first. */
static inline float tsr_softmax_weigh(tsr_softmax *s, float score)
{
    if (score > s->most) {
        const float shrink = expf(s->most - score);
        s->sum *= shrink;
        for (size_t i = 0; i < s->n; i++)
            s->out[i] *= shrink;
        s->most = score;
    }
    const float p = expf(score - s->most);
    s->sum += p;
    return p;
}

/* Zeros where nothing was seen. */
static inline void tsr_softmax_end(const tsr_softmax *s)
{
    for (size_t i = 0; s->sum > 0 && i < s->n; i++)
        s->out[i] /= s->sum;
}

#endif
