/* The operations of a forward pass on a GPU that are in FP64 in every precision: norms, RoPE, gates, rows and rounding. exp
 * and tanh are CUDA's, within 2 ulp. Products and attention: kernels/cuda/forward_products.h.
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

/* Sums over the rows of x [n][cols]: parts [0][0][cols] becomes the sums of x^2 of each column, parts [0][1][cols] its least and
 * parts [0][2][cols] its largest element; the least one is NaN if an element is NaN or infinite. `parts` has room for
 * [tsr_cuda_f64_column_parts(n)][TSR_F64_COLUMN_SUMS][cols]. Parts of a fixed number of rows are added in order. */
enum { TSR_F64_COLUMN_SUMS = 3 };
size_t tsr_cuda_f64_column_parts(size_t n);
tsr_status tsr_cuda_f64_columns(const double *x, size_t n, size_t cols, double *parts, tsr_stream stream,
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
