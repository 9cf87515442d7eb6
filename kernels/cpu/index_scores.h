/* Declares the FP8 scores of an indexer of sparse attention (DeepSeek-V3.2, GLM-5) on the CPU: the definition.
 *
 *   logits[i][j] = k_scale[j] * sum over heads h of weights[i][h] * relu(sum over d of q[i][h][d] * k[j][d])
 *
 * over keys j < seen[i]; -infinity for other keys. This is DeepGEMM's fp8_mqa_logits: the scale of a head's query and
 * the softmax scale are part of its weight. Codes are e4m3 and not NaN. Scales and weights are finite.
 *
 * Order of summation, all in FP32: the products of a head, which are exact, are added to 0 in the order of d; then
 * each head's weight times its sum, rounded, is added to 0 in the order of h; the total is multiplied by the scale.
 *
 * Kernel error of an element, with u = 2^-24: a product goes through at most width + heads + 1 roundings, and relu
 * increases no error, so |logits - exact| <= 1.01 (width + heads + 1) u |k_scale| sum over h of |weights| sum over d of
 * |q k|. 1.01 covers the terms of higher order for width + heads up to 10^5. Terms below 2^-126 lose 2^-149 more. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct tsr_index_scores {
    const uint8_t *q;     /* [queries][heads][width] */
    const uint8_t *k;     /* [keys][width] */
    const float *k_scale; /* [keys] */
    const float *weights; /* [queries][heads] */
    const int32_t *seen;  /* [queries]: keys before this one are visible; 0 to `keys` */
    float *logits;        /* [queries][keys] */
    size_t queries, keys, heads, width;
} tsr_index_scores;

/* Computes the scores. Allocates nothing and cannot fail. Thread-safe if `logits` differ. */
void tsr_index_scores_run(const tsr_index_scores *args);
