/* Names the precisions of products in a forward pass. */
#pragma once

#include <stddef.h>

/* The numbers that products and attention multiply. Sums are in FP64 for FP64, and otherwise in FP32. */
typedef enum tsr_precision { TSR_PRECISION_FP64, TSR_PRECISION_FP32, TSR_PRECISION_BF16 } tsr_precision;

static inline size_t tsr_precision_bytes(tsr_precision precision)
{
    return precision == TSR_PRECISION_FP64 ? 8 : precision == TSR_PRECISION_FP32 ? 4 : 2;
}

/* Returns the precision of sums. */
static inline tsr_precision tsr_precision_of_sums(tsr_precision precision)
{
    return precision == TSR_PRECISION_FP64 ? TSR_PRECISION_FP64 : TSR_PRECISION_FP32;
}
