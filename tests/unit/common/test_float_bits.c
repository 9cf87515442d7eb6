/* Tests the conversions between FP32, FP64 and BF16, F16, e4m3, e2m1 and e8m0 for all codes and all ties. */
#include "common/float_bits.h"

#include <criterion/criterion.h>
#include <math.h>

/* Computes the value of a code as sign * significand * 2^exponent, with divisions in place of shifts. */
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

/* Checks rounding between two adjacent numbers: the midpoint rounds to the even code, its FP32 neighbours to the nearer
 * number. */
#define CHECK_BETWEEN(below, from_f32, lower, upper)                                                          \
    do {                                                                                                      \
        const unsigned even_ = ((below)&1) == 0 ? (below) : (below) + 1, sign_ = sizeof(from_f32(0)) * 8 - 1; \
        const float half_ = (float)(((lower) + (upper)) / 2);                                                 \
        cr_assert_eq((double)half_, ((lower) + (upper)) / 2, "%04x: the tie is an FP32 number", below);       \
        cr_assert_eq(from_f32(half_), even_, "%04x: the tie", below);                                         \
        cr_assert_eq(from_f32(-half_), even_ | 1u << sign_, "%04x: the tie below zero", below);               \
        cr_assert_eq(from_f32(nextafterf(half_, 0)), below, "%04x: below the tie", below);                    \
        cr_assert_eq(from_f32(nextafterf(half_, INFINITY)), (below) + 1, "%04x: above the tie", below);       \
    } while (0)

Test(float_bits, ties_go_to_the_even_neighbour)
{
    for (unsigned i = 0; i < 0x7F7F; i++)
        CHECK_BETWEEN(i, tsr_bf16_from_f32, (double)tsr_f32_from_bf16((uint16_t)i),
                      (double)tsr_f32_from_bf16((uint16_t)(i + 1)));
    for (unsigned i = 0; i < 0x7BFF; i++)
        CHECK_BETWEEN(i, tsr_f16_from_f32, (double)tsr_f32_from_f16((uint16_t)i),
                      (double)tsr_f32_from_f16((uint16_t)(i + 1)));
    for (unsigned i = 0; i < 0x7E; i++)
        CHECK_BETWEEN(i, tsr_e4m3_from_f32, (double)tsr_e4m3_to_f32((uint8_t)i),
                      (double)tsr_e4m3_to_f32((uint8_t)(i + 1)));
    cr_assert_eq(tsr_bf16_from_f32(0x1.FFp127f), 0x7F80, "half way from the largest number on, BF16 is infinite");
    cr_assert_eq(tsr_bf16_from_f32(nextafterf(0x1.FFp127f, 0)), 0x7F7F);
    cr_assert_eq(tsr_f16_from_f32(65520), 0x7C00, "and so is F16");
    cr_assert_eq(tsr_f16_from_f32(nextafterf(65520, 0)), 0x7BFF);
}

/* A double is rounded once, also if it is so close to a tie that it would be the tie in FP32. */
Test(float_bits, doubles_are_rounded_to_bf16_once)
{
    for (unsigned i = 0; i < 0x7F7F; i++) {
        const double lower = (double)tsr_f32_from_bf16((uint16_t)i),
                     upper = (double)tsr_f32_from_bf16((uint16_t)(i + 1)), half = (lower + upper) / 2;
        cr_assert_eq(tsr_bf16_from_f64(half), i + (i & 1), "%04x: the tie", i);
        cr_assert_eq(tsr_bf16_from_f64(nextafter(half, 0)), i, "%04x: below the tie", i);
        cr_assert_eq(tsr_bf16_from_f64(nextafter(half, INFINITY)), i + 1, "%04x: above the tie", i);
        cr_assert_eq(tsr_bf16_from_f64(-nextafter(half, INFINITY)), 0x8000 | (i + 1), "%04x: and below zero", i);
    }
}

Test(float_bits, e2m1_has_eight_sizes_and_ties_go_to_the_even_code)
{
    static const float kSizes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (unsigned i = 0; i < 8; i++) {
        cr_assert_eq(tsr_e2m1_to_f32(i), kSizes[i]);
        cr_assert(is_same(tsr_e2m1_to_f32(i | 8), -kSizes[i]));
        cr_assert_eq(tsr_e2m1_from_f32(kSizes[i]), i);
        cr_assert_eq(tsr_e2m1_from_f32(-kSizes[i]), i | 8);
        if (i == 7)
            break;
        const float half = (kSizes[i] + kSizes[i + 1]) / 2;
        cr_assert_eq(tsr_e2m1_from_f32(half), i + (i & 1), "%u: the tie", i);
        cr_assert_eq(tsr_e2m1_from_f32(nextafterf(half, 0)), i, "%u: below the tie", i);
        cr_assert_eq(tsr_e2m1_from_f32(nextafterf(half, 9)), i + 1, "%u: above the tie", i);
    }
    cr_assert_eq(tsr_e2m1_from_f32(INFINITY), 7);
    cr_assert_eq(tsr_e2m1_from_f32(-1e9f), 15);
}
