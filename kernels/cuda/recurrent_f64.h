/* The recurrent layers of a forward pass in FP64 on a GPU, as plain kernels: a causal convolution, and recurrences,
 * which go through the tokens of a sequence one after another.
 *
 * All pointers are device memory. Only the alignment of double is needed. */
#ifndef TSR_KERNELS_CUDA_RECURRENT_F64_H
#define TSR_KERNELS_CUDA_RECURRENT_F64_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[t][c] = silu(bias[c] + sum over j < taps of weight[c][j] x[t + 1 - taps + j][c]) for x and y [rows][channels], which must
 * not be the same. places [rows] are positions in the sequences; tokens before a sequence are zeros. bias may be NULL. */
typedef struct tsr_f64_convolve {
    const double *x;
    double *y;
    const double *weight, *bias;
    const uint32_t *places;
    size_t rows, channels, taps;
} tsr_f64_convolve;
tsr_status tsr_cuda_f64_convolve(const tsr_f64_convolve *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* The gated delta rule or a scan as verify/forward/forward_ops.h defines them. Sequence s has the tokens from first[s] to first[s + 1].
 * states [sequences][heads][dim][v_dim] is scratch memory. */
typedef struct tsr_f64_recur {
    bool scan;
    double least;
    const double *q, *k, *v, *decay, *beta, *rate, *shift, *skip; /* beta, skip: NULL where they are not used */
    double *out, *states;
    const size_t *first;
    size_t sequences, heads, k_heads, dim, v_dim, decays;
} tsr_f64_recur;
tsr_status tsr_cuda_f64_recur(const tsr_f64_recur *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

#ifdef __cplusplus
}
#endif
#endif
