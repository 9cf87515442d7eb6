/* Linear layers and other operations of a model, in double. Weights are decoded row by row from the checkpoint and are
 * never complete in memory.
 *
 *   y[t][r] (+)= sum over c in [first, first + cols) of x[t][c] * W[r][c],  t < n, r < R
 *
 * A sum has 8 partial sums, (c - first) % 8, which are added in order at the end: the same bits on every machine and
 * for any number of threads. Products are rounded once and sums once (no fused operations). */
#pragma once

#include "verify/values/weight_reader.h"

typedef struct tsr_linear_product {
    const tsr_checkpoint *checkpoint;
    const tsr_weight *weight; /* a matrix [R, C], plain or coded; NULL: `dense` */
    uint64_t matrix;          /* index of the matrix in a stack; its rows are outputs, even if the file has them as
                               * columns */
    const double *dense;      /* the matrix itself, [..][cols] on the host, instead of a weight */
    size_t first, cols;       /* columns of W: first + cols <= C */
    size_t first_row, rows;   /* rows of W, whose sums go to columns 0 .. of y; rows 0: all of the weight */
    const double *x;          /* [n], rows are ld_x elements apart */
    size_t ld_x, n;
    double *y;   /* [n][R], rows are ld_y elements apart */
    size_t ld_y; /* 0: R */
    bool set;    /* y becomes the sums; otherwise they are added to it */
} tsr_linear_product;

/* Computes the product. TSR_E_NOMEM, TSR_E_IO and other read errors. */
tsr_status tsr_linear_run(const tsr_linear_product *args, unsigned threads, tsr_err *err);

/* Makes a view of the weight as a linear layer uses it: rows of outputs, also for transposed codes (gpt-oss). */
tsr_status tsr_linear_view(tsr_view *view, const tsr_checkpoint *checkpoint, const tsr_weight *weight, tsr_err *err);

/* Checks that the weight is a matrix of floats or codes with these dimensions, or with `cols` 0 a vector of floats.
 * TSR_E_SHAPE: it is not. TSR_E_FORMAT: codes without a scale. */
tsr_status tsr_linear_expect(const tsr_checkpoint *checkpoint, const tsr_weight *weight, size_t rows, size_t cols,
                             tsr_err *err);

/* Computes y = x / RMS(x) * gain, RMS(x) = sqrt(mean of x^2 + eps). A NULL gain is 1. x and y may be the same array. */
void tsr_rms_norm(const double *x, size_t n, const double *gain, double eps, double *y);

/* x becomes softmax(x). */
void tsr_soften(double *x, size_t n);

/* Returns the sum of x[i] y[i], with 8 partial sums. */
double tsr_dot(const double *x, const double *y, size_t n);
