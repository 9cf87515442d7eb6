/* The operations of a forward pass in FP64 on a GPU: products on the tensor cores' FP64 (DMMA, sm_80 and later), attention from
 * two products and a softmax, and what goes element by element. Sums of K products carry an error of at most K 2^-53 of
 * sum |a b|, in whatever order; exp and tanh are CUDA's, within 2 ulp.
 *
 * All pointers are device memory. Nothing needs an alignment beyond that of double. */
#ifndef TSR_KERNELS_CUDA_FORWARD_F64_H
#define TSR_KERNELS_CUDA_FORWARD_F64_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c[m][n] = (add ? c : 0) + sum over k of a[m][k] b[n][k], for each of `batch` matrices; where `across`, b is [k][n]. */
typedef struct tsr_f64_gemm {
    const double *a, *b;
    double *c;
    size_t m, n, k, lda, ldb, ldc;
    bool add, across;
    size_t batch, step_a, step_b, step_c; /* elements from one matrix to the next; */
    size_t share_b;                       /* so many of them in a row have the same b, at least 1 */
} tsr_f64_gemm;
tsr_status tsr_cuda_f64_gemm(const tsr_f64_gemm *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* Scores [heads][queries][keys] become probabilities, 0 where nothing is seen. Query i has the place first_query + i, and
 * key j the place first_key + j; a query sees the `window` last places up to its own. Scores are times `scale`, and
 * cap * tanh(score / cap) where cap is not 0; sinks [heads] (may be NULL) are logits more. */
typedef struct tsr_f64_softmax {
    double *scores;
    size_t heads, queries, keys, first_query, first_key, window;
    double scale, cap;
    const double *sinks;
} tsr_f64_softmax;
tsr_status tsr_cuda_f64_softmax(const tsr_f64_softmax *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* y = x / RMS(x) * gain of rows of n. */
typedef struct tsr_f64_norm {
    const double *x, *gain;
    double *y;
    size_t rows, n, ld_x, ld_y;
    double eps;
} tsr_f64_norm;
tsr_status tsr_cuda_f64_norm(const tsr_f64_norm *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* Pairs of each head are turned; angles [place][pairs][2] are cosines and sines, places [rows]. */
typedef struct tsr_f64_turn {
    double *x;
    const double *angles;
    const uint32_t *places;
    size_t rows, ld, at, heads, step, pairs;
    bool adjacent;
} tsr_f64_turn;
tsr_status tsr_cuda_f64_turn(const tsr_f64_turn *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* y [rows][n]: kind 0 silu(gate) up, 1 gelu by tanh(gate) up, 2 gpt-oss. */
typedef struct tsr_f64_gate {
    int kind;
    double limit;
    const double *gate, *up;
    size_t ld, step, rows, n;
    double *y;
} tsr_f64_gate;
tsr_status tsr_cuda_f64_gate(const tsr_f64_gate *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* y[to_row ? to_row[i] : i] (+)= weight[i] * x[from_row ? from_row[i] : i] of rows of n; a NULL weight is 1. No two rows go
 * to one. */
typedef struct tsr_f64_rows {
    double *y;
    const double *x, *weight;
    const uint32_t *to_row, *from_row;
    size_t rows, n, ld_y, ld_x;
    bool add;
} tsr_f64_rows;
tsr_status tsr_cuda_f64_rows(const tsr_f64_rows *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

tsr_status tsr_cuda_f64_scale(double *x, size_t n, double by, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* To BF16, to nearest even. */
tsr_status tsr_cuda_f64_round(double *x, size_t n, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

/* Rows of n to codes and back, as verify/forward/inputs.h says: type 1 e4m3, 2 int8, 3 e2m1. */
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
