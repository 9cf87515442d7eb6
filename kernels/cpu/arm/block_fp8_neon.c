/* Implements block FP8 with NEON: BF16 by table look-up, other types by division of 8 columns at a time. */
#include "kernels/cpu/block_fp8.h"

#include "kernels/cpu/arm/floats_neon.h"
#include "kernels/cpu/arm/simd_neon.h"
#include "kernels/cpu/variants.h"

#include <string.h>

typedef uint8x8_t codes8;

#define divisor_of(scale)   vdupq_n_f32(scale)
#define TSR_BLOCK_FP8(name) tsr_##name##_neon
#include "kernels/cpu/e4m3_division_body.h"
#include "kernels/cpu/e4m3_look_up_body.h"
/* uses the operations, the table and encode_by_division from above */
#include "kernels/cpu/e4m3_bands_body.h"
/* uses the functions of bands */
#include "kernels/cpu/block_fp8_body.h"

ALWAYS_INLINE uint32x4_t magnitude_bits(float32x4_t x)
{
    return vreinterpretq_u32_f32(vabsq_f32(x));
}

void tsr_amax_f32_neon(const float *x, size_t rows, size_t cols, size_t ld, size_t block_cols, uint32_t *amax)
{
    for (size_t first = 0; first < cols; first += block_cols) {
        const size_t width = block_width(cols, first, block_cols);
        uint32x4_t largest = vdupq_n_u32(0);
        for (size_t row = 0; row < rows; row++) {
            for (size_t col = 0; col < width; col += 8) {
                const floats8 v = load8_f32(x + row * ld + first + col, width - col);
                largest = vmaxq_u32(largest, vmaxq_u32(magnitude_bits(v.part[0]), magnitude_bits(v.part[1])));
            }
        }
        *amax++ = vmaxvq_u32(largest);
    }
}

void tsr_widen_f16_neon(const uint16_t *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i += 4) {
        uint16_t halves[4] = {0};
        float floats[4];
        const size_t count = n - i < 4 ? n - i : 4;
        memcpy(halves, x + i, count * sizeof *halves);
        vst1q_f32(floats, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves))));
        memcpy(out + i, floats, count * sizeof *floats);
    }
}
