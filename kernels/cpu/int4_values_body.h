/* Implements parts of int4_values as TSR_INT4(name), for each form to include and the compiler to vectorize. */
#include "common/float_bits.h"
#include "kernels/cpu/variants.h"

void TSR_INT4(decode_column_f32)(const uint32_t *words, size_t n, unsigned shift, uint32_t mask, const float *scale,
                                 const float *zero, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = ((float)(int32_t)(words[i] >> shift & mask) - zero[i]) * scale[i];
}

/* No NaN, so a carry of the rounding into the exponent is right, up to infinity. */
void TSR_INT4(narrow_bf16)(const float *x, size_t n, uint16_t *y)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = tsr_f32_bits(x[i]);
        y[i] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
}

uint32_t TSR_INT4(largest_bits)(const float *x, size_t n)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = tsr_f32_bits(x[i]);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}
