/* Declares unquantized rows taken from a larger tensor, for example one expert's projection from a stack. */
#pragma once

#include "convert/plan/plan.h"

/* A matrix [rows, cols] with a row per layer output. */
typedef struct tsr_gather {
    const tsr_tensor *from;     /* [matrices, r, c], or [matrices, c, r] if `turned`; or a matrix, or a vector [r] */
    uint64_t matrix;            /* which of them */
    uint64_t first, step, rows; /* row i is source row first + i * step; the count continues into the next matrix */
    uint64_t cols;              /* c */
    bool turned;
} tsr_gather;

/* Returns a reader of the rows, in the dtype of `from` and in the plan's arena. *gather is copied. NULL when memory is
 * exhausted. */
const tsr_decoded *tsr_gather_rows(tsr_plan *plan, const tsr_gather *gather);
