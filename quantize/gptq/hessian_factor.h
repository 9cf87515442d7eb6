/* Factors the Hessian of a linear layer's output error, H = mean of x x^T over the layer's inputs x.
 *
 * For the error e = w - y of a row of weights, the mean squared error of its output is e^T H e. With H = R^T R, R upper
 * triangular, it is the sum over j of R_jj^2 (e_j + sum over k > j of M_jk e_k)^2, M_jk = R_jk / R_jj. */
#pragma once

#include "common/status.h"
#include "kernels/cpu/cpu.h"

#include <stddef.h>
#include <stdint.h>

/* The factor of H with its columns reordered: those with the smallest diagonal come first. Positions are padded to
 * whole tiles of TSR_OUTER_TILE. */
typedef struct tsr_hessian_factor {
    size_t cols, positions;
    uint32_t *order; /* [cols]: the column at each position */
    double *pivots;  /* [positions]: R_jj^2 */
    double *ratios;  /* for each tile of 8 positions j, M_jk as [k from the tile's first position on][8] */
    double damping;  /* was added to H_jj, as a share of their mean */
} tsr_hessian_factor;

/* Returns the ratios of a tile. */
const double *tsr_hessian_ratios(const tsr_hessian_factor *factor, size_t tile);

/* Returns the bytes that a factor of this size takes, and those it takes while it is computed. */
uint64_t tsr_hessian_factor_bytes(size_t cols);
uint64_t tsr_hessian_factor_work_bytes(size_t cols);

/* Computes the factor of h, FP32 [cols, cols], symmetric up to rounding; it may be unaligned. The damping is 0.01; if H
 * is not positive definite with it, ten times as much is tried, up to 10. The result does not depend on `threads` or on
 * the instruction set. TSR_E_VALUE: H has NaN or Inf, or a diagonal of zeros or with negative values, or is not
 * symmetric, or is no Hessian. `what` names it in messages. The caller frees *factor. */
tsr_status tsr_hessian_factorize(tsr_hessian_factor *factor, const unsigned char *h, size_t cols, const char *what,
                                 const tsr_cpu_kernels *kernels, uint64_t threads, tsr_err *err);

void tsr_hessian_factor_free(tsr_hessian_factor *factor);
