/* Implements mx_scales as TSR_MX_SCALES(name), for each form to include and the compiler to vectorize. */
#include "common/float_bits.h"
#include "kernels/cpu/variants.h"

void TSR_MX_SCALES(values_e8m0)(const uint8_t *scales, size_t n, float *t)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t byte = scales[i], usual = byte == 0 ? 1u << 22 : byte << 23;
        t[i] = tsr_f32_from_bits(byte == 255 ? 0x7FC00000 : usual);
    }
}

/* Returns the value of an e4m3 byte. At the position of FP32's digits it is 2^120 too small. NaN is an exception, which
 * is selected by a mask, since compilers do not vectorize a branch. */
static inline float value_of(uint32_t byte)
{
    const uint32_t sign = (byte & 0x80) << 24, nan = (byte & 0x7F) == 0x7F ? UINT32_MAX : 0;
    const float value = tsr_f32_from_bits(sign | (byte & 0x7F) << 20) * 0x1p120f;
    return tsr_f32_from_bits((nan & (sign | 0x7FC00000)) | (~nan & tsr_f32_bits(value)));
}

void TSR_MX_SCALES(values_e4m3)(const uint8_t *scales, size_t n, float global, bool divides, float *t)
{
    if (divides) {
        for (size_t i = 0; i < n; i++)
            t[i] = value_of(scales[i]) / global;
    } else {
        for (size_t i = 0; i < n; i++)
            t[i] = value_of(scales[i]) * global;
    }
}

uint8_t TSR_MX_SCALES(largest_byte)(const uint8_t *bytes, size_t n)
{
    uint8_t largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = bytes[i] > largest ? bytes[i] : largest;
    return largest;
}
