/* The recurrent layers of a forward pass on a GPU, as plain kernels: a causal convolution, and recurrences, which go
 * through the tokens of a sequence one after another.
 *
 * Activations (x, y, q, k, v, decay, beta, out) are double or float, as in kernels/cuda/activation_ops.h. The
 * arithmetic and all other arrays are in FP64. All pointers are device memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/precision.h"
#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[t][c] = silu(bias[c] + sum over j < taps of weight[c][j] x[t + 1 - taps + j][c]) for x and y [rows][channels],
 * which must not be the same. places [rows] are positions in the sequences; tokens before a sequence are zeros. bias
 * may be NULL. */
typedef struct tsr_act_convolve {
    const void *x;
    void *y;
    const double *weight, *bias;
    const uint32_t *places;
    size_t rows, channels, taps;
} tsr_act_convolve;
tsr_status tsr_cuda_act_convolve(const tsr_act_convolve *args, tsr_precision precision, tsr_stream stream,
                                 tsr_err *err);

/* The gated delta rule or a scan as verify/forward/forward_ops.h defines them. Sequence s has the tokens from first[s]
 * to first[s + 1]. states [sequences][heads][dim][v_dim] is scratch memory. */
typedef struct tsr_act_recur {
    bool scan;
    double least;
    const void *q, *k, *v, *decay, *beta; /* beta: NULL if it is not used */
    const double *rate, *shift, *skip;    /* skip: NULL if it is not used */
    void *out;
    double *states;
    const size_t *first;
    size_t sequences, heads, k_heads, dim, v_dim, decays;
} tsr_act_recur;
tsr_status tsr_cuda_act_recur(const tsr_act_recur *args, tsr_precision precision, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
