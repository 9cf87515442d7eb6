/* Rounds rows of a matrix by GPTQ: each column's code also makes up for the errors of the columns before it.
 *
 * Scales and zero points are given. Columns are rounded one after another, those with the largest mean square of the
 * input first. Column j is rounded to the code nearest to w_j + sum over k of M_jk e_k, where the e_k = w_k - y_k are
 * the errors so far (quantize/gptq/hessian_factor.h). This is the error feedback of GPTQ (arXiv 2210.17323) as Babai's
 * nearest plane algorithm (arXiv 2507.18553), which needs no inverse of H. */
#pragma once

#include "formats/checkpoint/dtype.h"
#include "kernels/cpu/cpu.h"
#include "quantize/gptq/hessian_factor.h"

#include <stdbool.h>

/* Some rows, [rows, cols] of the factor's columns. */
typedef struct tsr_gptq_rows {
    size_t rows, group; /* columns that share a scale */
    tsr_dtype dtype;    /* dtype of the weights: BF16, F16 or F32 */
    const void *x;      /* the weights; may be unaligned */
    const float *scale; /* [rows, ceil(cols / group)]: what readers multiply a code's value by; 0: all codes are 0 */
    const int8_t *zero; /* zero points, like the scales; NULL: all are 0 */
    bool e2m1;          /* codes are e2m1, in the low four bits; otherwise integers from low to high */
    int8_t low, high;
    int8_t *codes; /* in: the codes nearest to the weights; out: those of GPTQ */
    void *scratch; /* tsr_gptq_scratch bytes, aligned to 8 */
} tsr_gptq_rows;

/* Errors of outputs: sums over the rows of e^T H e, with the damped H. */
typedef struct tsr_gptq_errors {
    double nearest, chosen;
} tsr_gptq_errors;

size_t tsr_gptq_scratch(size_t cols);

/* Replaces the codes, and adds the errors to *errors. A row whose error would not fall keeps its codes. Thread-safe. */
void tsr_gptq_round(const tsr_hessian_factor *factor, const tsr_cpu_kernels *kernels, const tsr_gptq_rows *rows,
                    tsr_gptq_errors *errors);
