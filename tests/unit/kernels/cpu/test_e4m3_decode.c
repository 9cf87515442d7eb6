/* Tests decoding of e4m3: the scalar form against double, every form against the scalar one. */
#include "common/float_bits.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/variants.h"
#include "tests/unit/kernels/cpu/rounded.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Returns a finite scale that is not negative, often one at the limits. */
static float random_scale(void)
{
    static const float kCorners[] = {0,       1,        0x1p-149f,  0x1p-126f, 0x1.fffffep127f,
                                     0x1p-9f, 0x1p-17f, 0x1.8p-24f, 146.3f};
    const uint64_t r = random_bits();
    if (r % 4 == 0)
        return kCorners[r / 4 % (sizeof kCorners / sizeof *kCorners)];
    if (r % 4 == 1)
        return ldexpf(1.0f, (int)(r / 4 % 250) - 125);
    return tsr_f32_from_bits((uint32_t)(r >> 32) % 0x7F800000u);
}

static double bf16_value(uint16_t y)
{
    return (double)tsr_f32_from_bits((uint32_t)y << 16);
}

static double f16_value(uint16_t y)
{
    const int exponent = y >> 10 & 31, mantissa = y & 1023;
    const double x = exponent == 31  ? (mantissa == 0 ? INFINITY : NAN)
                     : exponent == 0 ? ldexp(mantissa, -24)
                                     : ldexp(1024 + mantissa, exponent - 25);
    return y & 0x8000 ? -x : x;
}

Test(e4m3_decode, reference_is_one_product_and_one_rounding)
{
    for (int trial = 0; trial < 2000; trial++) {
        const float scale = random_scale();
        for (int code = 0; code < 256; code++) {
            const uint8_t c = (uint8_t)code;
            uint16_t bf16, f16;
            float f32;
            tsr_decode_e4m3_bf16_ref(&c, 1, 1, 1, 1, &scale, &bf16, 1);
            tsr_decode_e4m3_f16_ref(&c, 1, 1, 1, 1, &scale, &f16, 1);
            tsr_decode_e4m3_f32_ref(&c, 1, 1, 1, 1, &scale, &f32, 1);
            if ((code & 0x7F) == 0x7F) {
                cr_assert_eq(bf16, (code & 0x80) << 8 | 0x7FC0);
                cr_assert_eq(f16, (code & 0x80) << 8 | 0x7E00);
                cr_assert(isnan(f32) && !signbit(f32) == (code < 0x80));
                continue;
            }
            const double exact = (double)tsr_e4m3_to_f32(c) * scale;
            double product = rounded(exact, 24, -126);
            product = fabs(product) > 0x1.fffffep127 ? copysign(INFINITY, product) : product;
            cr_assert_eq((double)f32, product, "code %d scale %a: %a", code, scale, f32);
            double want = rounded(product, 8, -126);
            want = fabs(want) > 0x1.fep127 ? copysign(INFINITY, want) : want;
            cr_assert_eq(bf16_value(bf16), want, "code %d scale %a: %x", code, scale, bf16);
            want = rounded(product, 11, -14);
            want = fabs(want) > 65504 ? copysign(INFINITY, want) : want;
            cr_assert_eq(f16_value(f16), want, "code %d scale %a: %x", code, scale, f16);
            cr_assert_eq(bf16 >> 15, code >> 7);
            cr_assert_eq(f16 >> 15, code >> 7);
        }
    }
}

Test(e4m3_decode, bf16_of_a_double_is_rounded_once)
{
    cr_assert_eq(tsr_bf16_from_f64(1 + 0x1p-8 + 0x1p-40), 0x3F81); /* FP32 in between would make a tie of it */
    cr_assert_eq(tsr_bf16_from_f64(1 + 0x1p-8), 0x3F80);
    cr_assert_eq(tsr_bf16_from_f64(1 + 3 * 0x1p-8 - 0x1p-40), 0x3F81);
    for (int trial = 0; trial < 1000000; trial++) {
        const uint16_t at = (uint16_t)(random_bits() % 0x7F7F); /* a positive finite BF16, and the next one */
        const double low = bf16_value(at), high = bf16_value((uint16_t)(at + 1));
        const double part = trial % 3 == 0 ? 0.5 : (double)(random_bits() >> 11) * 0x1p-53;
        const double nudge = (double)((int)(random_bits() % 3) - 1) * (high - low) * 0x1p-40;
        const double x = low + (high - low) * part + nudge;
        const double down = x - low, up = high - x;
        const uint16_t want = down < up || (down == up && at % 2 == 0) ? at : (uint16_t)(at + 1);
        cr_assert_eq(tsr_bf16_from_f64(x), want, "%a", x);
        cr_assert_eq(tsr_bf16_from_f64(-x), want | 0x8000, "%a", -x);
    }
}

enum { ROWS = 5, COLS = 300, LD = 320 };

Test(e4m3_decode, variants_equal_the_reference)
{
    static const unsigned kMasks[] = {TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};
    static const size_t kBlocks[] = {1, 7, 16, 32, 100, 128, 300, 1000};
    static uint8_t codes[ROWS * LD];
    static uint16_t want16[2][ROWS * LD], got16[2][ROWS * LD];
    static float want32[ROWS * LD], got32[ROWS * LD], scales[COLS];
    for (int trial = 0; trial < 400; trial++) {
        const size_t rows = random_bits() % ROWS + 1, cols = random_bits() % COLS + 1;
        const size_t block = kBlocks[random_bits() % (sizeof kBlocks / sizeof *kBlocks)];
        for (size_t i = 0; i < sizeof codes; i++)
            codes[i] = (uint8_t)random_bits();
        for (size_t i = 0; i < COLS; i++)
            scales[i] = random_scale();
        memset(want16, 0xAA, sizeof want16);
        memset(want32, 0xAA, sizeof want32);
        tsr_decode_e4m3_bf16_ref(codes, rows, cols, LD, block, scales, want16[0], LD);
        tsr_decode_e4m3_f16_ref(codes, rows, cols, LD, block, scales, want16[1], LD);
        tsr_decode_e4m3_f32_ref(codes, rows, cols, LD, block, scales, want32, LD);
        for (size_t m = 0; m < sizeof kMasks / sizeof *kMasks; m++) {
            tsr_cpu_kernels k;
            tsr_cpu_kernels_init(&k, kMasks[m] & tsr_cpu_flags());
            memset(got16, 0xAA, sizeof got16);
            memset(got32, 0xAA, sizeof got32);
            k.decode_e4m3_bf16(codes, rows, cols, LD, block, scales, got16[0], LD);
            k.decode_e4m3_f16(codes, rows, cols, LD, block, scales, got16[1], LD);
            k.decode_e4m3_f32(codes, rows, cols, LD, block, scales, got32, LD);
            cr_assert_arr_eq(got16[0], want16[0], sizeof got16[0], "bf16, mask %u", kMasks[m]);
            cr_assert_arr_eq(got16[1], want16[1], sizeof got16[1], "f16, mask %u", kMasks[m]);
            cr_assert_arr_eq(got32, want32, sizeof got32, "f32, mask %u", kMasks[m]);
        }
    }
}

/* Tests every code, and every code that is neither subnormal nor NaN alone, because forms treat them differently.
 * Scales have every exponent, including those near which results become subnormal or infinite, and mantissas that make
 * ties. */
Test(e4m3_decode, every_code_by_scales_of_every_exponent)
{
    enum { CODES = 256, TRIALS = 6 };
    static const unsigned kMasks[] = {TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};
    uint8_t codes[2 * CODES];
    uint16_t want[2 * CODES], got[2 * CODES];
    for (int i = 0; i < CODES; i++) {
        codes[i] = (uint8_t)(i * 37);
        codes[CODES + i] = (uint8_t)((8 + i * 37 % 119) | (i % 2 << 7));
    }
    for (uint32_t at = 0; at < 255 * TRIALS; at++) {
        const uint32_t mantissa = at % TRIALS == 0   ? 0
                                  : at % TRIALS == 1 ? 0x7FFFFF
                                  : at % 2 == 0      ? (uint32_t)random_bits() % 256 << 15
                                                     : (uint32_t)random_bits() & 0x7FFFFF;
        const float scale = tsr_f32_from_bits(at / TRIALS << 23 | mantissa), scales[] = {scale, scale};
        tsr_decode_e4m3_bf16_ref(codes, 1, 2 * CODES, 2 * CODES, CODES, scales, want, 2 * CODES);
        for (size_t m = 0; m < sizeof kMasks / sizeof *kMasks; m++) {
            tsr_cpu_kernels k;
            tsr_cpu_kernels_init(&k, kMasks[m] & tsr_cpu_flags());
            cr_assert(k.decode_e4m3_bf16(codes, 1, 2 * CODES, 2 * CODES, CODES, scales, got, 2 * CODES));
            for (int i = 0; i < 2 * CODES; i++)
                cr_assert_eq(got[i], want[i], "mask %u, code %x, scale %a: %x", kMasks[m], codes[i], (double)scale,
                             got[i]);
            cr_assert_not(k.decode_e4m3_bf16(codes + CODES, 1, CODES, CODES, CODES, scales, got, CODES));
        }
    }
}

Test(e4m3_decode, finds_a_single_nan_anywhere)
{
    static uint16_t y[3 * 200];
    static float wide[3 * 200];
    const float scales[2] = {1, 2};
    static const unsigned kMasks[] = {0, TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};
    for (size_t m = 0; m < sizeof kMasks / sizeof *kMasks; m++) {
        tsr_cpu_kernels k;
        tsr_cpu_kernels_init(&k, kMasks[m] & tsr_cpu_flags());
        uint8_t codes[3 * 200] = {0};
        for (size_t at = 0; at < sizeof codes; at++) {
            codes[at] = at % 2 == 0 ? 0x7F : 0xFF;
            const bool inside = at % 200 < 150;
            cr_assert_eq(k.decode_e4m3_bf16(codes, 3, 150, 200, 128, scales, y, 200), inside, "at %zu", at);
            cr_assert_eq(k.decode_e4m3_f16(codes, 3, 150, 200, 128, scales, y, 200), inside, "at %zu", at);
            cr_assert_eq(k.decode_e4m3_f32(codes, 3, 150, 200, 128, scales, wide, 200), inside, "at %zu", at);
            codes[at] = 0x7E;
        }
    }
}
