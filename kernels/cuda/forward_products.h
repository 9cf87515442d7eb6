/* The operations around the products of a forward pass, which cuBLAS computes (kernels/cuda/cublas.h): conversions of
 * activations, the order of heads in attention, and softmax.
 *
 * All pointers are device memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/precision.h"
#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Activations [tokens][groups][width], FP64 for operands in FP64 and otherwise FP32, whose tokens are `ld` elements
 * apart, and the same numbers as [groups][tokens] [width] in an array for products, whose groups are `step` and whose
 * tokens `pitch` elements apart. A group is the heads that share keys, or all columns of a row. */
typedef struct tsr_grouped {
    void *x;
    size_t ld, tokens, groups, width;
    void *y;
    size_t pitch, step;
} tsr_grouped;

/* Sets y to x, rounded to the precision. */
tsr_status tsr_cuda_group(const tsr_grouped *args, tsr_precision precision, tsr_stream stream, tsr_err *err);

/* Sets x to y, which has the precision. */
tsr_status tsr_cuda_ungroup(const tsr_grouped *args, tsr_precision precision, tsr_stream stream, tsr_err *err);

/* Converts scores [groups][queries][share][keys], which have the precision of its sums (common/precision.h), to
 * probabilities of the same shape in the precision, 0 for masked keys. Query i has position first_query + i. Key j has
 * position first_key + j. A query sees the last `window` positions up to its own. Scores are multiplied by `scale`, and
 * become cap * tanh(score / cap) if cap is not 0. sinks [groups][share] (may be NULL) are additional logits. With
 * `chosen`, query i of head h, counted through all groups, sees only the positions whose bits are set in row
 * h / heads_of_choice * rows + first_row + i. The last `entries` keys are entries of a compressed cache: entry j is
 * visible from position (j + 1) rate - 1 on, and `chosen` then limits entries instead of positions. */
typedef struct tsr_attention_softmax {
    tsr_precision precision;
    void *scores, *probabilities; /* these may be the same array if the numbers have the same size */
    size_t groups, queries, share, keys, first_query, first_key, window;
    double scale, cap;
    const double *sinks;
    const uint64_t *chosen; /* [..][rows][words], or NULL */
    size_t heads_of_choice, rows, first_row, words;
    size_t entries, rate; /* rate: of entries */
} tsr_attention_softmax;
tsr_status tsr_cuda_attention_softmax(const tsr_attention_softmax *args, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
