/* Defines the decoding of int4 codes. */
#define TSR_INT4(name) tsr_##name##_ref
#include "kernels/cpu/int4_values_body.h"

static float value(const uint8_t *packed, size_t i, size_t g, const float *scale, const float *zero)
{
    const int code = (packed[i / 2] >> i % 2 * 4 & 15) - 8;
    return ((float)code - (zero == NULL ? 0 : zero[g])) * scale[g];
}

void tsr_decode_int4_bf16_ref(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                              uint16_t *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = tsr_bf16_from_f32(value(packed, i, i / group, scale, zero));
}

void tsr_decode_int4_f16_ref(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                             uint16_t *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = tsr_f16_from_f32(value(packed, i, i / group, scale, zero));
}

void tsr_decode_int4_f32_ref(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                             float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = value(packed, i, i / group, scale, zero);
}

void tsr_narrow_f16_ref(const float *x, size_t n, uint16_t *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = tsr_f16_from_f32(x[i]);
}
