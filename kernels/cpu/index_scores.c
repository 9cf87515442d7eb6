/* Computes an indexer's scores over FP8 codes, one key after another. */
#include "kernels/cpu/index_scores.h"

#include "common/float_bits.h"

#include <math.h>

/* Returns the sum of a head's products. */
static float dot(const float *values, const uint8_t *q, const uint8_t *k, size_t width)
{
    float sum = 0;
    for (size_t d = 0; d < width; d++)
        sum += values[q[d]] * values[k[d]];
    return sum;
}

void tsr_index_scores_run(const tsr_index_scores *a)
{
    float values[256];
    for (size_t code = 0; code < 256; code++)
        values[code] = tsr_e4m3_to_f32((uint8_t)code);
    for (size_t at = 0; at < a->queries * a->keys; at++) {
        const size_t i = at / a->keys, j = at % a->keys;
        float sum = 0;
        for (size_t h = 0; h < a->heads && (int64_t)j < a->seen[i]; h++) {
            const float score = dot(values, a->q + (i * a->heads + h) * a->width, a->k + j * a->width, a->width);
            sum += a->weights[i * a->heads + h] * (score > 0 ? score : 0);
        }
        a->logits[at] = (int64_t)j < a->seen[i] ? a->k_scale[j] * sum : -INFINITY;
    }
}
