/* Rows of plain weights taken out of a larger tensor, as they are: one expert's projection out of a stack. */
#ifndef TSR_CONVERT_OPS_ROWS_GATHER_ROWS_H
#define TSR_CONVERT_OPS_ROWS_GATHER_ROWS_H

#include "convert/plan/plan.h"

/* A matrix [rows, cols] of layer outputs by inputs. */
typedef struct tsr_gather {
    const tsr_tensor *from; /* [matrices, r, c], or [matrices, c, r] where it is turned; or a matrix, or a vector [r] */
    uint64_t matrix;        /* which of them */
    uint64_t first, step, rows; /* row i is row first + i * step of its r, or of the next matrix's where they end */
    uint64_t cols;              /* c */
    bool turned;
} tsr_gather;

/* Returns the reading of its rows, in the dtype of `from`, in the plan's arena; *gather is copied. NULL when memory is
 * exhausted. */
const tsr_decoded *tsr_gather_rows(tsr_plan *plan, const tsr_gather *gather);

#endif
