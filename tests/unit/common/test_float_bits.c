#include "common/float_bits.h"

#include <criterion/criterion.h>
#include <math.h>

/* sign * significand * 2^exponent, as the format's tables have it; the bits are read apart here, not by shifting. */
static double value_of(unsigned bits, int exponent_bits, int mantissa_bits, int bias, bool has_infinity)
{
    const unsigned mantissa = bits & ((1u << mantissa_bits) - 1), top = (1u << exponent_bits) - 1;
    const unsigned exponent = bits >> mantissa_bits & top;
    double x;
    if (has_infinity && exponent == top)
        x = mantissa == 0 ? INFINITY : NAN;
    else if (exponent == 0)
        x = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        x = ldexp((1u << mantissa_bits) + mantissa, (int)exponent - bias - mantissa_bits);
    return bits >> (exponent_bits + mantissa_bits) & 1 ? -x : x;
}

static bool is_same(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

Test(float_bits, every_half_reads_as_its_table_says_and_comes_back)
{
    for (unsigned i = 0; i < 65536; i++) {
        const uint16_t bits = (uint16_t)i;
        const float f16 = tsr_f32_from_f16(bits), bf16 = tsr_f32_from_bf16(bits);
        cr_assert(is_same(f16, value_of(i, 5, 10, 15, true)), "f16 %04x", i);
        cr_assert(is_same(bf16, value_of(i, 8, 7, 127, true)), "bf16 %04x", i);
        cr_assert_eq(tsr_f16_from_f32(f16), isnan(f16) ? (bits & 0x8000) | 0x7E00 : bits, "f16 %04x", i);
        cr_assert_eq(tsr_bf16_from_f32(bf16), isnan(bf16) ? (bits & 0x8000) | 0x7FC0 : bits, "bf16 %04x", i);
        if (isfinite(bf16))
            cr_assert_eq(tsr_bf16_from_f64(bf16), bits, "bf16 %04x", i);
    }
}

Test(float_bits, every_e4m3_code_reads_as_its_table_says_and_comes_back)
{
    for (unsigned i = 0; i < 256; i++) {
        const float x = tsr_e4m3_to_f32((uint8_t)i);
        const double want = (i & 0x7F) == 0x7F ? (double)NAN : value_of(i, 4, 3, 7, false);
        cr_assert(is_same(x, want), "%02x", i);
        cr_assert_eq(tsr_e4m3_from_f32(x), i, "%02x", i);
    }
    cr_assert_eq(tsr_e4m3_from_f32(1e9f), 0x7E);
    cr_assert_eq(tsr_e4m3_from_f32(-INFINITY), 0xFE);
}

Test(float_bits, e8m0_is_an_exponent)
{
    for (int i = 0; i < 255; i++)
        cr_assert_eq(tsr_f32_from_e8m0((uint8_t)i), ldexp(1, i - 127), "%d", i);
    cr_assert(isnan(tsr_f32_from_e8m0(255)));
}
