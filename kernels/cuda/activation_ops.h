/* The operations of a forward pass on a GPU between its products: norms, RoPE, gates, rows, sums and rounding.
 *
 * `precision` selects the type of activations: double for TSR_PRECISION_FP64, float for TSR_PRECISION_FP32. Each
 * operation computes in the type of its activations. Vectors of weights are always double. exp and tanh are CUDA's,
 * within 2 ulp. Each pointer is an address in device memory, aligned to the size of an element.
 * kernels/cuda/forward_products.h declares products and attention. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/gate.h"
#include "common/precision.h"
#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* scores[i][j] = sum over h of weights[i][h] max(of_heads[h][i][j], 0), for of_heads [heads][queries][keys] and weights
 * [queries][heads]. All three are activations. */
typedef struct tsr_act_index {
    const void *of_heads, *weights;
    void *scores;
    size_t heads, queries, keys;
} tsr_act_index;
tsr_status tsr_cuda_act_index(const tsr_act_index *args, tsr_precision precision, tsr_stream stream, tsr_err *err);

/* y = x / RMS(x) * gain for rows of n. A NULL gain is 1. */
typedef struct tsr_act_norm {
    const void *x;
    const double *gain;
    void *y;
    size_t rows, n, ld_x, ld_y;
    double eps;
} tsr_act_norm;
tsr_status tsr_cuda_act_norm(const tsr_act_norm *args, tsr_precision precision, tsr_stream stream, tsr_err *err);

/* y = x - mean of x for rows of n; x and y may be equal. */
tsr_status tsr_cuda_act_center(const void *x, size_t rows, size_t n, void *y, tsr_precision precision,
                               tsr_stream stream, tsr_err *err);

/* Sums over the rows of x [n][cols]: parts [0][0][cols] becomes the sums of x^2 of each column, parts [0][1][cols] its
 * least and parts [0][2][cols] its largest element; the least one is NaN if an element is NaN or infinite. `parts` has
 * room for [tsr_cuda_act_column_parts(n)][TSR_ACT_COLUMN_SUMS][cols]. Parts of a fixed number of rows are added in
 * order, in FP64. */
enum { TSR_ACT_COLUMN_SUMS = 3 };
size_t tsr_cuda_act_column_parts(size_t n);
tsr_status tsr_cuda_act_columns(const void *x, size_t n, size_t cols, double *parts, tsr_precision precision,
                                tsr_stream stream, tsr_err *err);

/* Rotates pairs of each head. angles [position][pairs][2] are cosines and sines; places [rows] are the positions. */
typedef struct tsr_act_turn {
    void *x;
    const double *angles;
    const uint32_t *places;
    size_t rows, ld, at, heads, step, pairs;
    bool adjacent, back; /* back: by the negative angles */
} tsr_act_turn;
tsr_status tsr_cuda_act_turn(const tsr_act_turn *args, tsr_precision precision, tsr_stream stream, tsr_err *err);

/* y [rows][n] = the gate of `gate` and `up`. */
typedef struct tsr_act_gate {
    tsr_gate kind;
    double limit;
    const void *gate, *up;
    size_t ld, step, rows, n;
    void *y;
} tsr_act_gate;
tsr_status tsr_cuda_act_gate(const tsr_act_gate *args, tsr_precision precision, tsr_stream stream, tsr_err *err);

/* y[to_row ? to_row[i] : i] (+)= weight[i] * x[from_row ? from_row[i] : i] for rows of n; a NULL weight is 1.
 * Destination rows must be distinct. */
typedef struct tsr_act_rows {
    void *y;
    const void *x;
    const double *weight;
    const uint32_t *to_row, *from_row;
    size_t rows, n, ld_y, ld_x;
    bool add;
} tsr_act_rows;
tsr_status tsr_cuda_act_rows(const tsr_act_rows *args, tsr_precision precision, tsr_stream stream, tsr_err *err);

/* Entries of a compressed cache, as tsr_op_compress of verify/forward/forward_ops.h defines them: out [entries][dim] of
 * values and gates [..][dim or 2 dim]. Entry e has `rate` tokens from token[e] on, and is number[e] of its sequence. */
typedef struct tsr_act_compress {
    const void *values, *gates;
    const double *bias;
    const uint32_t *token, *number;
    void *out;
    size_t entries, dim, rate;
    bool overlaps;
} tsr_act_compress;
tsr_status tsr_cuda_act_compress(const tsr_act_compress *args, tsr_precision precision, tsr_stream stream,
                                 tsr_err *err);

/* Sets each of `rows` rows of y to the vector x. */
tsr_status tsr_cuda_act_fill(void *y, size_t rows, size_t n, const double *x, tsr_precision precision,
                             tsr_stream stream, tsr_err *err);

tsr_status tsr_cuda_act_scale(void *x, size_t n, double by, tsr_precision precision, tsr_stream stream, tsr_err *err);

/* Rounds to BF16, to nearest even. */
tsr_status tsr_cuda_act_round(void *x, size_t n, tsr_precision precision, tsr_stream stream, tsr_err *err);

/* Quantizes and dequantizes rows of n, as in verify/forward/inputs.h: type 1 e4m3, 2 int8, 3 e2m1. The arithmetic is in
 * FP64. */
typedef struct tsr_act_quantize {
    void *x;
    size_t rows, n, group;
    int type;
    bool zero_points, powers_of_two;
    double scale, zero;
} tsr_act_quantize;
tsr_status tsr_cuda_act_quantize(const tsr_act_quantize *args, tsr_precision precision, tsr_stream stream,
                                 tsr_err *err);

#ifdef __cplusplus
}
#endif
