/* Defines values of the microscaling formats in plain C, one value at a time. */
#include "kernels/cpu/mx_values.h"

#include "common/float_bits.h"
#include "kernels/cpu/variants.h"

enum { MXFP8_GROUP = 32 };

static float value(const uint8_t *packed, size_t i, float t)
{
    return tsr_e2m1_to_f32(packed[i / 2] >> i % 2 * 4) * t;
}

void tsr_decode_e2m1_bf16_ref(const uint8_t *packed, size_t n, size_t group, const float *t, uint16_t *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = tsr_bf16_from_f32(value(packed, i, t[i / group]));
}

void tsr_decode_e2m1_f32_ref(const uint8_t *packed, size_t n, size_t group, const float *t, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = value(packed, i, t[i / group]);
}

bool tsr_decode_mxfp8_bf16_ref(const uint8_t *codes, size_t n, const uint8_t *scales, uint16_t *y)
{
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        const bool nan = (codes[i] & 0x7F) == 0x7F;
        found = found || nan;
        y[i] = nan ? (uint16_t)((codes[i] & 0x80) << 8 | 0x7FC0)
                   : tsr_bf16_from_f32(tsr_e4m3_to_f32(codes[i]) * tsr_f32_from_e8m0(scales[i / MXFP8_GROUP]));
    }
    return found;
}
