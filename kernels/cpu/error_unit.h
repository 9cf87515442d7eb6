/* Defines the unit in which errors of codes are measured. */
#pragma once

#include "common/float_bits.h"

/* Returns the power of two by which elements and scale are multiplied to keep squares within FP32: 1 for all usual
 * scales. */
static inline float tsr_error_boost(float scale)
{
    if (scale >= 0x1p-40f && scale <= 0x1p40f)
        return 1;
    const uint32_t exponent = tsr_f32_bits(scale) >> 23;
    return tsr_f32_from_bits((exponent < 253 ? 254 - exponent : 1) << 23);
}
