/* Declares products of activations with a linear layer in FP32, with a defined order of summation.
 *
 *   y[b][i][j] = sum over c of x[b][i][c] w[b][j][c]
 *
 * The product of element c is added to sum c % 32; then the 32 sums are added in halves. A product goes through at most
 * tsr_project_roundings(k) roundings, so |y - exact| <= 1.01 tsr_project_roundings(k) 2^-24 sum |x w|, where 1.01
 * covers the terms of higher order for k up to 10^6. */
#pragma once

#include <stddef.h>

enum { TSR_PROJECT_LANES = 32 };

typedef struct tsr_project_args {
    const float *x, *w;
    float *y;
    size_t batch, m, n, k;
    size_t ld_x, ld_w, ld_y;       /* distance of rows in elements */
    size_t next_x, next_w, next_y; /* distance of matrices of the batch in elements */
} tsr_project_args;

size_t tsr_project_roundings(size_t k);

/* Computes the products. Allocates nothing and cannot fail. Thread-safe if y differs. */
void tsr_project_run(const tsr_project_args *args);
