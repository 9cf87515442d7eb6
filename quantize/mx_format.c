/* Decodes scales of the microscaling formats. */
#include "quantize/mx_format.h"

#include "common/float_bits.h"

float tsr_mx_largest(tsr_mx_element element)
{
    return element == TSR_MX_E2M1 ? 6.0f : TSR_E4M3_MAX;
}

uint64_t tsr_mx_code_bytes(tsr_mx_element element, uint64_t cols)
{
    return element == TSR_MX_E2M1 ? cols / 2 : cols;
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
