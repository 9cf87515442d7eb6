/* Implements block FP8 with NEON: BF16 by table look-up, other types by division of 8 columns at a time. */
#include "kernels/cpu/block_fp8.h"

#include "kernels/cpu/arm/e4m3_simd_neon.h"
#include "kernels/cpu/arm/floats_neon.h"
#include "kernels/cpu/variants.h"

#include <string.h>

/* Divides n columns by one scale. Accesses no column beyond n. */
ALWAYS_INLINE void divide(const void *x, size_t x_bytes, size_t n, load8_fn *load, float scale, uint8_t *codes)
{
    const float32x4_t divisor = vdupq_n_f32(scale);
    for (size_t i = 0; i < n; i += 8) {
        const size_t count = n - i < 8 ? n - i : 8;
        const uint8x8_t eight = divided_e4m3(load((const char *)x + i * x_bytes, count), divisor);
        memcpy(codes + i, &eight, count);
    }
}

static __attribute__((noinline)) void encode_by_division(const uint16_t *x, size_t n, float scale, uint8_t *codes)
{
    divide(x, sizeof *x, n, load8_bf16, scale, codes);
}

#include "kernels/cpu/e4m3_look_up_body.h"
/* uses the operations, the table and encode_by_division from above */
#include "kernels/cpu/e4m3_bands_body.h"

void tsr_amax_bf16_neon(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols, uint32_t *amax)
{
    amax_band(x, rows, cols, ld, block_cols, amax);
}

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

void tsr_encode_e4m3_bf16_neon(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                               const float *scales, uint8_t *codes, size_t ld_codes)
{
    encode_band(x, rows, cols, ld, block_cols, scales, codes, ld_codes);
}

void tsr_encode_e4m3_f32_neon(const float *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                              const float *scales, uint8_t *codes, size_t ld_codes)
{
    for (size_t col = 0; col < cols; col += block_cols, scales++) {
        for (size_t row = 0; row < rows; row++)
            divide(x + row * ld + col, sizeof *x, block_width(cols, col, block_cols), load8_f32, *scales,
                   codes + row * ld_codes + col);
    }
}

void tsr_quantize_e4m3_bf16_neon(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                 bool power_of_two, uint32_t *amax, float *scales, uint8_t *codes, size_t ld_codes,
                                 tsr_block_error *errors)
{
    const band b = {x, rows, cols, ld, power_of_two, codes, ld_codes, errors};
    quantize_band(&b, block_cols, amax, scales);
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

void tsr_error_e4m3_bf16_neon(const uint16_t *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes,
                              size_t ld_codes, float scale, tsr_block_error *error)
{
    const error_input in = {x, rows, cols, ld, codes, ld_codes};
    if (!measure_block(&in, true, scale, error))
        tsr_error_e4m3_bf16_ref(x, rows, cols, ld, codes, ld_codes, scale, error);
}

void tsr_error_e4m3_f32_neon(const float *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes, size_t ld_codes,
                             float scale, tsr_block_error *error)
{
    const error_input in = {x, rows, cols, ld, codes, ld_codes};
    if (!measure_block(&in, false, scale, error))
        tsr_error_e4m3_f32_ref(x, rows, cols, ld, codes, ld_codes, scale, error);
}
