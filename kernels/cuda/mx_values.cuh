/* Decodes e2m1 and e4m3 codes and the scales of small groups, one at a time: common/float_bits.h in device code. Every
 * operation is rounded separately, with or without -fmad=false, and subnormal numbers are kept. */
#pragma once

#include <stdint.h>

#include "kernels/cpu/mx_gemm.h"

namespace tsr
{

/* Uses only the low 4 bits of `code`. In FP32's position the code is the value times 2^-126, and 0.5 is a subnormal. */
__device__ __forceinline__ float e2m1_value(uint32_t code)
{
    return __fmul_rn(__uint_as_float((code & 8) << 28 | (code & 7) << 22), 0x1p126f);
}

/* Returns the value of a code that is not NaN. Uses only the low 8 bits. */
__device__ __forceinline__ float e4m3_value(uint32_t code)
{
    return __fmul_rn(__uint_as_float((code & 0x80) << 24 | (code & 0x7F) << 20), 0x1p120f);
}

__device__ __forceinline__ bool is_e4m3_nan(uint32_t code)
{
    return (code & 0x7F) == 0x7F;
}

/* Returns t of scale `at`. */
__device__ __forceinline__ float mx_scale(tsr_mx_form form, const uint8_t *scales, float global, int64_t at)
{
    if (form == TSR_MX_FORM_BF16) {
        return 1.0f;
    }
    const uint32_t scale = __ldg(scales + at);
    if (form == TSR_MX_FORM_NVFP4_TIMES) {
        return __fmul_rn(e4m3_value(scale), global);
    }
    if (form == TSR_MX_FORM_NVFP4_DIVIDED) {
        return __fdiv_rn(e4m3_value(scale), global);
    }
    return __uint_as_float(scale == 0 ? 1u << 22 : scale << 23);
}

/* Returns true if launchers support codes of this form with these scales. */
inline bool is_mx_coded(tsr_mx_form form)
{
    return form > TSR_MX_FORM_BF16 && form <= TSR_MX_FORM_NVFP4_DIVIDED;
}

} // namespace tsr
