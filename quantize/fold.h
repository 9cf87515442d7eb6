/* Multiplies the rows and columns of a matrix by powers of two, which changes no bit of its significands.
 *
 * A layer whose columns are multiplied by s_j, behind a norm or a layer whose channels are divided by s_j, computes the
 * same function. Larger weights of a column get smaller relative errors in 4 bits. This is the idea of AWQ
 * (https://arxiv.org/abs/2306.00978), here with s_j = 2^e_j. */
#pragma once

#include "formats/checkpoint/checkpoint.h"

/* Exponents of a matrix [R, C]; a vector is one row. NULL: all are 0. */
typedef struct tsr_fold {
    int8_t *columns; /* [C] */
    int8_t *rows;    /* [R] */
} tsr_fold;

/* Multiplies rows [row, row + rows) of a tensor of BF16, F16 or F32 in place; x has them without gaps, C = cols.
 * TSR_E_VALUE, with the position: the dtype cannot hold a product exactly. */
tsr_status tsr_fold_rows(const tsr_fold *fold, const tsr_tensor *tensor, uint64_t row, uint64_t rows, uint64_t cols,
                         void *x, tsr_err *err);
