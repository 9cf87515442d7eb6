/* Lists the arithmetic of each producer of the microscaling formats, and computes NVFP4's global scale. */
#include "quantize/mx_weight.h"

#include "common/float_bits.h"
#include "quantize/scales/four_six.h"

#include <math.h>

tsr_mx_scheme tsr_mx_scheme_of(tsr_mx_kind kind, bool modelopt)
{
    if (kind == TSR_NVFP4)
        return (tsr_mx_scheme){
            .element = TSR_MX_E2M1, .group = 16, .scale = modelopt ? TSR_MX_E4M3_TIMES : TSR_MX_E4M3_DIVIDED};
    return (tsr_mx_scheme){.element = kind == TSR_MXFP4 ? TSR_MX_E2M1 : TSR_MX_E4M3,
                           .group = 32,
                           .scale = TSR_MX_E8M0,
                           .rule = modelopt ? TSR_MX_RCEIL : TSR_MX_EVEN,
                           .ties_down = modelopt};
}

static const char *const kRules[] = {
    [TSR_MX_FLOOR] = "floor", [TSR_MX_EVEN] = "even", [TSR_MX_RCEIL] = "rceil", [TSR_MX_CEIL] = "ceil"};

const char *tsr_mx_rule_name(tsr_mx_rule rule)
{
    return kRules[rule];
}

/* Returns the product of the largest scale of a group and the largest element. */
static float largest_of(const tsr_mx_scheme *scheme)
{
    return 6 * (scheme->search == TSR_SCALES_FOUR_SIX ? TSR_FOUR_SIX_LARGEST_SCALE : TSR_E4M3_MAX);
}

static float divisor_of(tsr_dtype source, float amax, float largest)
{
    if (source != TSR_BF16)
        return 1 / fmaxf(amax, 0x1p-126f) * largest;
    const float inverse = tsr_f32_from_bf16(tsr_bf16_from_f32(1 / fmaxf(amax, 0x1p-126f)));
    return tsr_f32_from_bf16(tsr_bf16_from_f32(inverse * largest));
}

float tsr_nvfp4_global(const tsr_mx_scheme *scheme, tsr_dtype source, const float *amax, size_t members)
{
    float largest = 0;
    for (size_t i = 0; i < members; i++)
        largest = fmaxf(largest, amax[i]);
    if (scheme->scale == TSR_MX_E4M3_DIVIDED) {
        const float global = divisor_of(source, largest, largest_of(scheme));
        return isfinite(global) ? global : 1;
    }
    return largest == 0 ? 1 : fmaxf(largest / largest_of(scheme), 0x1p-149f);
}
