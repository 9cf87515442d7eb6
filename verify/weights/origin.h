/* Whose values a tensor holds: looked for when it does not hold its own. */
#ifndef TSR_VERIFY_WEIGHTS_ORIGIN_H
#define TSR_VERIFY_WEIGHTS_ORIGIN_H

#include "verify/weights/compare.h"

/* The relative error below which values are the same but for quantization to this weight's codes: unrelated ones are at
 * 1.4. */
double tsr_same_values(const tsr_weight *weight);

typedef struct tsr_origin {
    const tsr_weight *values; /* of the source, of the same shape, that is closest and close enough; NULL: none */
    const tsr_weight *codes;  /* likewise, after each block was given the scale that suits it best */
} tsr_origin;

/* Looks at the first tile of `weight`, which is of `dst`, and of every tensor of `src` that has its shape. */
tsr_status tsr_find_origin(const tsr_side *src, const tsr_side *dst, const tsr_weight *weight, tsr_origin *origin,
                           tsr_err *err) TSR_WARN_UNUSED;

#endif
