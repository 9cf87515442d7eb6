/* Rounds scales through their stored bits. */
#include "quantize/scales/stored_scale.h"

#include "common/float_bits.h"

float tsr_stored_scale(tsr_dtype dtype, float scale, const tsr_cpu_kernels *kernels)
{
    float back;
    if (dtype == TSR_F32)
        return scale;
    if (dtype == TSR_BF16) {
        back = tsr_f32_from_bf16(tsr_bf16_from_f32(scale));
        return back > 0 ? back : 0x1p-133f;
    }
    const uint16_t half = tsr_f16_from_f32(scale);
    kernels->widen_f16(&half, 1, &back);
    return back > 0 ? back : 0x1p-24f;
}
