/* Decodes scales of the microscaling formats. */
#include "quantize/scales/mx_format.h"

#include "common/float_bits.h"

float tsr_mx_largest(tsr_mx_element element)
{
    return element == TSR_MX_E2M1 ? 6.0f : TSR_E4M3_MAX;
}

uint64_t tsr_mx_code_bytes(tsr_mx_element element, uint64_t cols)
{
    return element == TSR_MX_E2M1 ? cols / 2 : cols;
}

bool tsr_mx_is_scale(tsr_mx_scale kind, int scale)
{
    return kind == TSR_MX_E8M0 ? scale >= 0 && scale <= 254 : scale >= 1 && scale <= 0x7E;
}

bool tsr_mx_may_reach_infinity(tsr_mx_element element, float t)
{
    /* For zeros t is subnormal, and products with it are slow; no code exceeds 2^9. */
    return t >= 0x1p100f && !(tsr_mx_largest(element) * t < 0x1.FFp127f);
}

void tsr_mx_scale_values(tsr_mx_scale kind, float global, const uint8_t *scales, size_t n, float *t)
{
    for (size_t i = 0; i < n; i++) {
        if (kind == TSR_MX_E8M0)
            t[i] = tsr_f32_from_e8m0(scales[i]);
        else
            t[i] =
                kind == TSR_MX_E4M3_TIMES ? tsr_e4m3_to_f32(scales[i]) * global : tsr_e4m3_to_f32(scales[i]) / global;
    }
}
