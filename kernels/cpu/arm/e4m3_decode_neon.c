/* Decodes e4m3 with NEON, in large blocks by tables.
 *
 * For one scale a code has 128 magnitudes, and NEON looks bytes up in tables of 64. In a large block the definition
 * computes the 128 values once, and their low and high bytes are looked up. */
#include "kernels/cpu/e4m3_decode.h"

#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

#include <arm_neon.h>
#include <math.h>
#include <string.h>

enum {
    STEP = 16,      /* codes per step */
    WORTH_IT = 256, /* fewest weights of a block for a table */
};

/* The low and the high bytes of the values of all codes without a sign. */
typedef struct table {
    uint8_t low[128], high[128];
} table;

typedef bool decode_fn(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                       const float *scales, uint16_t *y, size_t ld);

static table make_table(float scale, decode_fn *definition)
{
    table t;
    uint8_t codes[128];
    uint16_t values[128];
    for (unsigned i = 0; i < 128; i++)
        codes[i] = (uint8_t)i;
    (void)definition(codes, 1, 128, 128, 128, &scale, values, 128);
    for (unsigned i = 0; i < 128; i++) {
        t.low[i] = (uint8_t)values[i];
        t.high[i] = (uint8_t)(values[i] >> 8);
    }
    return t;
}

/* A table in registers, 0 .. 63 and 64 .. 127. Compilers keep plain variables there, and not always members. */
#define LOAD_TABLES(t)                                                                     \
    const uint8x16x4_t low_0 = vld1q_u8_x4((t)->low), low_64 = vld1q_u8_x4((t)->low + 64), \
                       high_0 = vld1q_u8_x4((t)->high), high_64 = vld1q_u8_x4((t)->high + 64)

/* Stores STEP values and returns the magnitudes of their codes; NaN is the largest. Beyond its 64 bytes the first
 * look-up gives 0, and the second keeps the earlier result. */
ALWAYS_INLINE uint8x16_t decode_step(const uint8_t *codes, uint8x16x4_t low_0, uint8x16x4_t low_64, uint8x16x4_t high_0,
                                     uint8x16x4_t high_64, uint16_t *y)
{
    const uint8x16_t code = vld1q_u8(codes), sign = vdupq_n_u8(0x80), size = vbicq_u8(code, sign);
    const uint8x16_t beyond = vsubq_u8(size, vdupq_n_u8(64));
    const uint8x16_t low = vqtbx4q_u8(vqtbl4q_u8(low_0, size), low_64, beyond);
    const uint8x16_t high = vqtbx4q_u8(vqtbl4q_u8(high_0, size), high_64, beyond);
    const uint8x16x2_t words = {{low, vorrq_u8(high, vandq_u8(code, sign))}};
    vst2q_u8((uint8_t *)y, words); /* interleaved, which makes words of the bytes */
    return size;
}

/* Decodes one block. */
ALWAYS_INLINE bool decode_block(const uint8_t *codes, size_t rows, size_t n, size_t ld_codes, const table *t,
                                uint16_t *y, size_t ld)
{
    LOAD_TABLES(t);
    uint8x16_t largest = vdupq_n_u8(0);
    for (size_t row = 0; row < rows; row++, codes += ld_codes, y += ld) {
        size_t i = 0;
        for (; i + STEP <= n; i += STEP)
            largest = vmaxq_u8(largest, decode_step(codes + i, low_0, low_64, high_0, high_64, y + i));
        if (i < n) {
            uint8_t in[STEP] = {0};
            uint16_t out[STEP];
            memcpy(in, codes + i, n - i);
            largest = vmaxq_u8(largest, decode_step(in, low_0, low_64, high_0, high_64, out));
            memcpy(y + i, out, (n - i) * sizeof *out);
        }
    }
    return vmaxvq_u8(largest) == 0x7F;
}

ALWAYS_INLINE bool decode(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                          const float *scales, uint16_t *y, size_t ld, decode_fn *definition)
{
    bool found = false;
    for (size_t first = 0; first < cols; first += block_cols, scales++) {
        const size_t n = cols - first < block_cols ? cols - first : block_cols;
        if (rows * n < WORTH_IT || signbit(*scales)) { /* -0 would change the signs */
            found |= definition(codes + first, rows, n, ld_codes, n, scales, y + first, ld);
            continue;
        }
        const table t = make_table(*scales, definition);
        found |= decode_block(codes + first, rows, n, ld_codes, &t, y + first, ld);
    }
    return found;
}

bool tsr_decode_e4m3_bf16_neon(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                               const float *scales, uint16_t *y, size_t ld)
{
    return decode(codes, rows, cols, ld_codes, block_cols, scales, y, ld, tsr_decode_e4m3_bf16_ref);
}

bool tsr_decode_e4m3_f16_neon(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                              const float *scales, uint16_t *y, size_t ld)
{
    return decode(codes, rows, cols, ld_codes, block_cols, scales, y, ld, tsr_decode_e4m3_f16_ref);
}

/* Decodes four codes. At the position of FP32's exponent a code is 2^120 too small, also if subnormal. NaN is an
 * exception. */
ALWAYS_INLINE float32x4_t values_of(uint32x4_t code, float32x4_t scale)
{
    const uint32x4_t sign = vshlq_n_u32(vandq_u32(code, vdupq_n_u32(0x80)), 24);
    const uint32x4_t size = vandq_u32(code, vdupq_n_u32(0x7F));
    const float32x4_t moved = vreinterpretq_f32_u32(vorrq_u32(vshlq_n_u32(size, 20), sign));
    const uint32x4_t product = vreinterpretq_u32_f32(vmulq_f32(vmulq_n_f32(moved, 0x1p120f), scale));
    const uint32x4_t nan = vorrq_u32(vdupq_n_u32(0x7FC00000), sign);
    return vreinterpretq_f32_u32(vbslq_u32(vceqq_u32(size, vdupq_n_u32(0x7F)), nan, product));
}

ALWAYS_INLINE uint8x16_t decode_floats(const uint8_t *codes, float scale, float *y)
{
    const uint8x16_t code = vld1q_u8(codes);
    const uint16x8_t half[2] = {vmovl_u8(vget_low_u8(code)), vmovl_high_u8(code)};
    for (int i = 0; i < 2; i++) {
        vst1q_f32(y + 8 * i, values_of(vmovl_u16(vget_low_u16(half[i])), vdupq_n_f32(scale)));
        vst1q_f32(y + 8 * i + 4, values_of(vmovl_high_u16(half[i]), vdupq_n_f32(scale)));
    }
    return vbicq_u8(code, vdupq_n_u8(0x80));
}

bool tsr_decode_e4m3_f32_neon(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                              const float *scales, float *y, size_t ld)
{
    uint8x16_t largest = vdupq_n_u8(0);
    for (size_t row = 0; row < rows; row++, codes += ld_codes, y += ld) {
        for (size_t first = 0; first < cols; first += block_cols) {
            const float scale = scales[first / block_cols];
            const size_t end = cols - first < block_cols ? cols : first + block_cols;
            size_t c = first;
            for (; c + STEP <= end; c += STEP)
                largest = vmaxq_u8(largest, decode_floats(codes + c, scale, y + c));
            if (c < end) {
                uint8_t in[STEP] = {0};
                float out[STEP];
                memcpy(in, codes + c, end - c);
                largest = vmaxq_u8(largest, decode_floats(in, scale, out));
                memcpy(y + c, out, (end - c) * sizeof *out);
            }
        }
    }
    return vmaxvq_u8(largest) == 0x7F;
}
