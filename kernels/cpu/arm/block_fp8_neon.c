/* Owns block FP8 in NEON: codes of BF16 by the look-up that AVX2 has, too; all else 8 columns at a time, and a tail goes
 * through a small buffer. */
#include "kernels/cpu/block_fp8.h"

#include "kernels/cpu/arm/e4m3_words_neon.h"
#include "kernels/cpu/arm/floats_neon.h"
#include "kernels/cpu/variants.h"

#include <string.h>

/* Columns of one scale, n of them; beyond n nothing is read or written. */
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

#include "kernels/cpu/x86/e4m3_look_up.h"
/* with the words, the table and the long way */
#include "kernels/cpu/x86/e4m3_bands.h"

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
                                 bool power_of_two, uint32_t *amax, float *scales, uint8_t *codes, size_t ld_codes)
{
    const band b = {x, rows, cols, ld, power_of_two, codes, ld_codes};
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

enum { PARTS = 8 }; /* of 4 lanes: the 32 lanes of the sums */

typedef struct error_sums {
    float k, reciprocal;
    float32x4_t q2[PARTS], e2[PARTS], qv[PARTS], largest;
    uint32x4_t nonzero, flushed, saturated; /* less what was counted */
} error_sums;

/* 8 codes as floats: in FP32's position they read 2^120 too small, subnormals included. */
ALWAYS_INLINE floats8 values_of(const uint8_t *codes, size_t n)
{
    uint8_t buffer[8] = {0};
    if (n < 8) {
        memcpy(buffer, codes, n);
        codes = buffer;
    }
    const uint16x8_t code = vmovl_u8(vld1_u8(codes));
    const uint16x8_t words = vorrq_u16(vshlq_n_u16(vandq_u16(code, vdupq_n_u16(0x80)), 8),
                                       vshlq_n_u16(vandq_u16(code, vdupq_n_u16(0x7F)), 4));
    const float32x4_t first = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(words), 16));
    const float32x4_t second = vreinterpretq_f32_u32(vshll_high_n_u16(words, 16));
    return (floats8){{vmulq_n_f32(first, 0x1p120f), vmulq_n_f32(second, 0x1p120f)}};
}

ALWAYS_INLINE float32x4_t quotient_of(const error_sums *sums, float32x4_t x)
{
    return vmulq_n_f32(vmulq_n_f32(x, sums->k), sums->reciprocal);
}

static double add_lanes(const float32x4_t *sums)
{
    double total = 0;
    for (int part = 0; part < PARTS; part++) {
        float lanes[4];
        vst1q_f32(lanes, sums[part]);
        for (int i = 0; i < 4; i++)
            total += (double)lanes[i];
    }
    return total;
}

ALWAYS_INLINE void add(error_sums *sums, float32x4_t x, float32x4_t v, size_t part)
{
    const float32x4_t q = quotient_of(sums, x), e = vsubq_f32(q, v);
    sums->q2[part] = vaddq_f32(sums->q2[part], vmulq_f32(q, q));
    sums->e2[part] = vaddq_f32(sums->e2[part], vmulq_f32(e, e));
    sums->qv[part] = vaddq_f32(sums->qv[part], vmulq_f32(q, v));
    sums->largest = vmaxnmq_f32(sums->largest, vabsq_f32(e));
    const uint32x4_t nonzero = vmvnq_u32(vceqzq_f32(x));
    sums->nonzero = vaddq_u32(sums->nonzero, nonzero);
    sums->flushed = vaddq_u32(sums->flushed, vandq_u32(nonzero, vceqzq_f32(v)));
    sums->saturated = vaddq_u32(sums->saturated, vcagtq_f32(q, vdupq_n_f32(464.0f)));
}

/* Where the first |e| of this size is. */
ALWAYS_INLINE void find_largest(const char *x, size_t rows, size_t cols, size_t ld_bytes, size_t x_bytes,
                                load8_fn *load, const uint8_t *codes, size_t ld_codes, const error_sums *sums,
                                tsr_block_error *error)
{
    for (size_t row = 0; row < rows; row++) {
        for (size_t col = 0; col < cols; col += 8) {
            const floats8 values = load(x + row * ld_bytes + col * x_bytes, cols - col);
            const floats8 decoded = values_of(codes + row * ld_codes + col, cols - col);
            for (unsigned part = 0; part < 2; part++) {
                float e[4];
                vst1q_f32(e, vabdq_f32(quotient_of(sums, values.part[part]), decoded.part[part]));
                for (unsigned i = 0; i < 4; i++) {
                    if (e[i] == error->max_e) {
                        error->max_row = (uint32_t)row;
                        error->max_col = (uint32_t)(col + 4 * part + i);
                        return;
                    }
                }
            }
        }
    }
}

ALWAYS_INLINE void measure(const char *x, size_t rows, size_t cols, size_t ld_bytes, size_t x_bytes, load8_fn *load,
                           const uint8_t *codes, size_t ld_codes, float scale, tsr_block_error *error)
{
    const float k = scale < 0x1p-100f ? 0x1p64f : 1.0f;
    error_sums sums = {.k = k, .reciprocal = 1.0f / (scale * k)};
    *error = (tsr_block_error){0};
    for (size_t row = 0; row < rows; row++) {
        for (size_t col = 0; col < cols; col += 8) {
            const floats8 values = load(x + row * ld_bytes + col * x_bytes, cols - col);
            const floats8 decoded = values_of(codes + row * ld_codes + col, cols - col);
            add(&sums, values.part[0], decoded.part[0], col / 4 % PARTS);
            add(&sums, values.part[1], decoded.part[1], col / 4 % PARTS + 1);
        }
    }
    error->sum_q2 = add_lanes(sums.q2);
    error->sum_e2 = add_lanes(sums.e2);
    error->sum_qv = add_lanes(sums.qv);
    error->nonzero = 0 - vaddvq_u32(sums.nonzero);
    error->flushed = 0 - vaddvq_u32(sums.flushed);
    error->saturated = 0 - vaddvq_u32(sums.saturated);
    error->max_e = vmaxvq_f32(sums.largest);
    if (error->max_e > 0)
        find_largest(x, rows, cols, ld_bytes, x_bytes, load, codes, ld_codes, &sums, error);
}

void tsr_error_e4m3_bf16_neon(const uint16_t *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes,
                              size_t ld_codes, float scale, tsr_block_error *error)
{
    measure((const char *)x, rows, cols, ld * sizeof *x, sizeof *x, load8_bf16, codes, ld_codes, scale, error);
}

void tsr_error_e4m3_f32_neon(const float *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes, size_t ld_codes,
                             float scale, tsr_block_error *error)
{
    measure((const char *)x, rows, cols, ld * sizeof *x, sizeof *x, load8_f32, codes, ld_codes, scale, error);
}
