/* Declares the kernel that keeps, for each group of columns, the maximum error, scale and |x| over many rows.
 *
 * It allocates nothing, cannot fail and is thread-safe; every variant gives the same bits. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Bits of positive FP32 numbers, which have the order of the numbers. */
typedef struct tsr_group_max {
    uint32_t *error, *scale, *amax;
} tsr_group_max;

/* Updates the n groups of a row, with e2 and t as in mx_error.h and the bits of amax. Raises error to the root of e2
 * times t (or 2^-149 if t is 0); scale to t, unless amax is 0; and amax. */
typedef void tsr_raise_groups_fn(const float *e2, const float *t, const uint32_t *amax, size_t n,
                                 const tsr_group_max *tops);
