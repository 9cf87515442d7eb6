/* Finds the source tensor whose values a wrong tensor holds. */
#pragma once

#include "verify/compare/compare.h"

/* Returns the relative error below which values are the same except for quantization to this weight's codes. Unrelated
 * values are at 1.4. */
double tsr_same_values(const tsr_weight *weight);

typedef struct tsr_origin {
    const tsr_weight *values; /* the closest source tensor of the same shape, if it is close enough; NULL: none */
    const tsr_weight *codes;  /* the tensor whose values match after each block is given its best scale */
} tsr_origin;

/* Compares the first tile of `weight`, which belongs to `dst`, with that of every tensor of `src` with its shape. */
tsr_status tsr_find_origin(const tsr_side *src, const tsr_side *dst, const tsr_weight *weight, tsr_origin *origin,
                           tsr_err *err);
