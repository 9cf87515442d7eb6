/* The operations of a forward pass in FP64 on a GPU: products on the FP64 tensor cores (DMMA, sm_80 and later),
 * attention from two products and a softmax, and element-wise operations. Sums of K products have an error of at most K
 * 2^-53 of sum |a b|, in any order; exp and tanh are CUDA's, within 2 ulp.
 *
 * All pointers are device memory. Only the alignment of double is needed. */
#ifndef TSR_KERNELS_CUDA_FORWARD_F64_H
#define TSR_KERNELS_CUDA_FORWARD_F64_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c[m][n] = (add ? c : 0) + sum over k of a[m][k] b[n][k], for each of `batch` matrices; if `across`, b is [k][n], and if
 * `both_across`, a is [k][m] too. */
typedef struct tsr_f64_gemm {
    const double *a, *b;
    double *c;
    size_t m, n, k, lda, ldb, ldc;
    bool add, across, both_across;
    size_t batch, step_a, step_b, step_c; /* elements from one matrix to the next; */
    size_t share_b;                       /* number of consecutive matrices with the same b, at least 1 */
} tsr_f64_gemm;
tsr_status tsr_cuda_f64_gemm(const tsr_f64_gemm *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* Converts scores [heads][queries][keys] to probabilities, 0 for masked keys. Query i has position first_query + i, and
 * key j has first_key + j; a query sees the last `window` positions up to its own. Scores are multiplied by `scale`,
 * and become cap * tanh(score / cap) if cap is not 0. sinks [heads] (may be NULL) are additional logits. With `chosen`,
 * query i of head h sees only the positions whose bits are set in row h / share * rows + first_row + i. */
typedef struct tsr_f64_softmax {
    double *scores;
    size_t heads, queries, keys, first_query, first_key, window;
    double scale, cap;
    const double *sinks;
    const uint64_t *chosen; /* [groups][rows][words], or NULL */
    size_t share, rows, first_row, words;
} tsr_f64_softmax;
tsr_status tsr_cuda_f64_softmax(const tsr_f64_softmax *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* scores[i][j] = sum over h of weights[i][h] max(of_heads[h][i][j], 0), for of_heads [heads][queries][keys] and weights
 * [queries][heads]. */
typedef struct tsr_f64_index {
    const double *of_heads, *weights;
    double *scores;
    size_t heads, queries, keys;
} tsr_f64_index;
tsr_status tsr_cuda_f64_index(const tsr_f64_index *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* y = x / RMS(x) * gain for rows of n. */
typedef struct tsr_f64_norm {
    const double *x, *gain;
    double *y;
    size_t rows, n, ld_x, ld_y;
    double eps;
} tsr_f64_norm;
tsr_status tsr_cuda_f64_norm(const tsr_f64_norm *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* y = x - mean of x for rows of n; x and y may be equal. */
tsr_status tsr_cuda_f64_center(const double *x, size_t rows, size_t n, double *y, tsr_stream stream,
                               tsr_err *err) TSR_WARN_UNUSED;

/* Rotates pairs of each head. angles [position][pairs][2] are cosines and sines; places [rows] are the positions. */
typedef struct tsr_f64_turn {
    double *x;
    const double *angles;
    const uint32_t *places;
    size_t rows, ld, at, heads, step, pairs;
    bool adjacent;
} tsr_f64_turn;
tsr_status tsr_cuda_f64_turn(const tsr_f64_turn *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* y [rows][n]: kind 0 silu(gate) up, 1 gelu by tanh(gate) up, 2 gpt-oss, 3 max(gate, 0)^2, 4 sigmoid(gate) up. */
typedef struct tsr_f64_gate {
    int kind;
    double limit;
    const double *gate, *up;
    size_t ld, step, rows, n;
    double *y;
} tsr_f64_gate;
tsr_status tsr_cuda_f64_gate(const tsr_f64_gate *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* y[to_row ? to_row[i] : i] (+)= weight[i] * x[from_row ? from_row[i] : i] for rows of n; a NULL weight is 1.
 * Destination rows must be distinct. */
typedef struct tsr_f64_rows {
    double *y;
    const double *x, *weight;
    const uint32_t *to_row, *from_row;
    size_t rows, n, ld_y, ld_x;
    bool add;
} tsr_f64_rows;
tsr_status tsr_cuda_f64_rows(const tsr_f64_rows *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

tsr_status tsr_cuda_f64_scale(double *x, size_t n, double by, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* Rounds to BF16, to nearest even. */
tsr_status tsr_cuda_f64_round(double *x, size_t n, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* Quantizes and dequantizes rows of n, as in verify/forward/inputs.h: type 1 e4m3, 2 int8, 3 e2m1. */
typedef struct tsr_f64_quantize {
    double *x;
    size_t rows, n, group;
    int type;
    bool zero_points, powers_of_two;
    double scale, zero;
} tsr_f64_quantize;
tsr_status tsr_cuda_f64_quantize(const tsr_f64_quantize *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

#ifdef __cplusplus
}
#endif
#endif
