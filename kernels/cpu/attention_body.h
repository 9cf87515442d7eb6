/* Implements the online softmax of the CPU's attention kernels. For their .c files only. */
#pragma once

#include "common/float_bits.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The state of an online softmax: `most` is the largest score so far, `sum` the sum of exp(score - most), and out[n]
 * the sum of the values with these weights. */
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

/* Takes the next token's score and returns the weight with which the caller adds its values to out. What was summed
 * before is rescaled if this score is the largest so far. */
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

/* Divides by the sum of the weights. If no token was seen, out stays zeros. */
static inline void tsr_softmax_end(const tsr_softmax *s)
{
    for (size_t i = 0; s->sum > 0 && i < s->n; i++)
        s->out[i] /= s->sum;
}
