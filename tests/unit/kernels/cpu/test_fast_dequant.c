/* Tests the fast int8 and int4 conversions of GPU kernels on the CPU: models of instructions, all codes, and the
 * layout.
 *
 * Each value that a lane of an mma reads must be an element of its fragment. */
#include "kernels/cpu/fast_dequant.h"
#include "kernels/cpu/ft_layout.h"
#include "kernels/cpu/interleave.h"
#include "kernels/cpu/variants.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t random_word(void)
{
    return (uint32_t)(random_bits() >> 16);
}

/* The bits of a small integer, which both formats hold exactly. */
static uint16_t f16_bits(int value)
{
    if (value == 0)
        return 0;
    int exponent;
    const double fraction = frexp(abs(value), &exponent);
    return (uint16_t)((value < 0) << 15 | (exponent + 14) << 10 | (int)(fraction * 2048 - 1024));
}

static uint16_t bf16_bits(int value)
{
    const float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static int slot_of(int element, int slots)
{
    return element / 2 + element % 2 * (slots / 2);
}

typedef void convert_fn(uint32_t word, uint32_t *out);

static void check_word(uint32_t word, int bits, convert_fn *f16, convert_fn *bf16)
{
    uint32_t as_f16[4], as_bf16[4];
    f16(word, as_f16);
    bf16(word, as_bf16);
    for (int i = 0; i < 32 / bits; i++) {
        const int code = (int)(word >> bits * slot_of(i, 32 / bits) & ((1u << bits) - 1)) - (1 << (bits - 1));
        cr_assert_eq((uint16_t)(as_f16[i / 2] >> 16 * (i % 2)), f16_bits(code), "word %08x element %d", word, i);
        cr_assert_eq((uint16_t)(as_bf16[i / 2] >> 16 * (i % 2)), bf16_bits(code), "word %08x element %d", word, i);
    }
}

/* Tests every value of either half of a word with every other of the other half, and so every code in every
 * position. */
Test(fast_dequant, converts_every_code)
{
    for (uint32_t half = 0; half < 0x10000; half++) {
        const uint32_t word = half << 16 | ((half * 0x9E37u) & 0xFFFF);
        check_word(word, 8, tsr_fast_int8_f16, tsr_fast_int8_bf16);
        check_word(word, 4, tsr_fast_int4_f16, tsr_fast_int4_bf16);
    }
}

/* Compares what ldmatrix loads for thread 4 * x + c of the k-th 16 bytes of a column of layout T with what mma.m16n8k16
 * needs of B in that thread: rows 2c, 2c + 1, 2c + 8, 2c + 9 of column x, and 16 rows further the same for the next
 * mma. */
Test(fast_dequant, layout_gives_each_lane_its_fragment)
{
    enum { K = 128, N = 64 };
    static uint8_t codes[K * N], stored[K * N];
    for (int bits = 8; bits >= 4; bits -= 4) {
        const tsr_ft_target target = {.producer = TSR_FT_FASTERTRANSFORMER, .arch = 80, .bits = bits};
        tsr_ft_format format;
        cr_assert_eq(tsr_ft_format_of(&target, &format, NULL), TSR_OK);
        for (size_t i = 0; i < sizeof codes; i++)
            codes[i] = (uint8_t)((int)(random_word() % (1u << bits)) - (1 << (bits - 1)));
        const tsr_interleave_args args = {&format, K, N, TSR_CODES_KN, false, N};
        tsr_interleave_ref(&args, codes, stored);
        const size_t group = (size_t)format.group, words = 32 / (size_t)bits;
        for (size_t n = 0; n < N; n++) {
            for (size_t k = 0; k < K; k += group) {
                for (size_t c = 0; c < 4; c++) {
                    const size_t start = tsr_ft_place_of(&format, K, N, k, n).byte;
                    uint32_t word, f16[4], bf16[4];
                    memcpy(&word, stored + start + 4 * c, sizeof word);
                    (bits == 8 ? tsr_fast_int8_f16 : tsr_fast_int4_f16)(word, f16);
                    (bits == 8 ? tsr_fast_int8_bf16 : tsr_fast_int4_bf16)(word, bf16);
                    for (size_t i = 0; i < words; i++) {
                        const size_t row = k + 2 * c + i % 2 + i / 2 * 8;
                        const int code = (int8_t)codes[row * N + n];
                        cr_assert_eq((uint16_t)(f16[i / 2] >> 16 * (i % 2)), f16_bits(code));
                        cr_assert_eq((uint16_t)(bf16[i / 2] >> 16 * (i % 2)), bf16_bits(code));
                    }
                }
            }
        }
    }
}

Test(fast_dequant, prmt)
{
    cr_assert_eq(tsr_prmt(0x33221100, 0x77665544, 0x3210), 0x33221100);
    cr_assert_eq(tsr_prmt(0x33221100, 0x77665544, 0x7654), 0x77665544);
    cr_assert_eq(tsr_prmt(0x33221100, 0x77665544, 0x0527), 0x00552277);
    cr_assert_eq(tsr_prmt(0x00FF7F80, 0x80000001, 0xFA98), 0xFFFF00FF); /* signs of 80, 7F, FF, 80 */
    cr_assert_eq(tsr_prmt(0x33221100, 0x77665544, 0xABCD3210), 0x33221100);
}

Test(fast_dequant, lop3)
{
    for (int i = 0; i < 1000; i++) {
        const uint32_t a = random_word(), b = random_word(), c = random_word();
        cr_assert_eq(tsr_lop3(a, b, c, 0x00), 0);
        cr_assert_eq(tsr_lop3(a, b, c, 0xFF), 0xFFFFFFFF);
        cr_assert_eq(tsr_lop3(a, b, c, TSR_LOP3_A), a);
        cr_assert_eq(tsr_lop3(a, b, c, TSR_LOP3_B), b);
        cr_assert_eq(tsr_lop3(a, b, c, TSR_LOP3_C), c);
        cr_assert_eq(tsr_lop3(a, b, c, 0xEA), (a & b) | c);
        cr_assert_eq(tsr_lop3(a, b, c, 0x96), a ^ b ^ c);
        cr_assert_eq(tsr_lop3(a, b, c, 0xE8), (a & b) | (a & c) | (b & c));
    }
}

/* fp16 in exact fixed point: every finite number is a multiple of 2^-24, every product of 2^-48. */
__extension__ typedef __int128 fixed;

static const fixed kProductUnit = (fixed)1 << 24; /* a negative number cannot be shifted */

static fixed fixed_of(uint16_t h)
{
    const int exponent = h >> 10 & 0x1F, mantissa = h & 0x3FF;
    const fixed magnitude = exponent == 0 ? (fixed)mantissa : (fixed)(1024 + mantissa) << (exponent - 1);
    return h >> 15 ? -magnitude : magnitude;
}

static fixed distance(fixed a, fixed b)
{
    return a < b ? b - a : a - b;
}

/* Returns true if r is `exact` (in units of 2^-48) rounded to nearest, ties to even. Infinity counts as 65536. */
static bool is_nearest(uint16_t r, fixed exact)
{
    const uint16_t magnitude = r & 0x7FFF;
    const fixed size = exact < 0 ? -exact : exact, here = fixed_of(magnitude) << 24;
    if (magnitude > 0x7C00 || (exact != 0 && (r >> 15 != (exact < 0))))
        return false;
    const bool even = magnitude % 2 == 0;
    if (magnitude < 0x7C00) {
        const fixed above = distance(fixed_of(magnitude + 1) << 24, size);
        if (distance(here, size) > above || (distance(here, size) == above && !even))
            return false;
    } else if (size >= here) {
        return true;
    }
    if (magnitude == 0)
        return true;
    const fixed below = distance(fixed_of(magnitude - 1) << 24, size);
    return distance(here, size) < below || (distance(here, size) == below && even);
}

static bool is_finite(uint16_t h)
{
    return (h & 0x7C00) != 0x7C00;
}

/* Random numbers, exponents near each other or far apart, so that ties, cancellation and double rounding all occur. */
Test(fast_dequant, f16_arithmetic_is_exact)
{
    for (int i = 0; i < 2000000; i++) {
        uint32_t a = random_word(), b = random_word(), c = random_word();
        if (i % 4 == 0) {
            a &= 0xFC0FFC0F; /* few significant bits make ties */
            b &= 0xFC03FC03;
        }
        const uint32_t fma = tsr_fma_f16x2(a, b, c), sub = tsr_sub_f16x2(a, c);
        for (unsigned shift = 0; shift < 32; shift += 16) {
            const uint16_t x = (uint16_t)(a >> shift), y = (uint16_t)(b >> shift), z = (uint16_t)(c >> shift);
            if (is_finite(x) && is_finite(y) && is_finite(z)) {
                cr_assert(is_nearest((uint16_t)(fma >> shift), fixed_of(x) * fixed_of(y) + fixed_of(z) * kProductUnit),
                          "%04x * %04x + %04x = %04x", x, y, z, fma >> shift & 0xFFFF);
            }
            if (is_finite(x) && is_finite(z)) {
                cr_assert(is_nearest((uint16_t)(sub >> shift), (fixed_of(x) - fixed_of(z)) * kProductUnit),
                          "%04x - %04x = %04x", x, z, sub >> shift & 0xFFFF);
            }
        }
    }
}

Test(fast_dequant, f16_arithmetic_at_the_edges)
{
    static const struct {
        uint16_t a, b, c, result;
    } kCases[] = {
        {0x7C00, 0x3C00, 0xFC00, 0x7FFF}, /* inf - inf */
        {0x7C00, 0x0000, 0x3C00, 0x7FFF}, /* inf * 0 */
        {0xFE01, 0x3C00, 0x3C00, 0x7FFF}, /* NaN loses its payload and sign */
        {0x7BFF, 0x4000, 0x0000, 0x7C00}, /* overflow */
        {0x7BFF, 0x3C00, 0x4C00, 0x7C00}, /* 65504 + 16: a tie, to even, which is infinity */
        {0x7BFF, 0x3C00, 0x4BFF, 0x7BFF}, /* 65504 + 15.99 */
        {0x0001, 0x3800, 0x0000, 0x0000}, /* half the least subnormal: a tie */
        {0x0003, 0x3800, 0x0000, 0x0002}, /* 1.5 of them */
        {0x3C00, 0x3C00, 0xBC00, 0x0000}, /* 1 - 1 = +0 */
        {0x8000, 0x3C00, 0x8000, 0x8000}, /* -0 + -0 */
        {0x6801, 0x3C00, 0x0001, 0x6801}, /* 2050 + 2^-24: far below the last bit */
        {0x3C01, 0x6801, 0x0001, 0x6802}, /* 1.0009765625 * 2050 = 2052.002, and a little */
        {0x6400, 0x3801, 0x0001, 0x6001}, /* 512.5 and a little */
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        const uint32_t got = tsr_fma_f16x2(kCases[i].a, kCases[i].b, kCases[i].c);
        cr_assert_eq(got & 0xFFFF, kCases[i].result, "case %zu: %04x", i, got & 0xFFFF);
    }
}

Test(fast_dequant, bf16_arithmetic)
{
    static const struct {
        uint16_t a, b, c, result;
    } kCases[] = {
        {0x7F80, 0x3F80, 0xFF80, 0x7FFF},
        {0xFFC1, 0x3F80, 0x3F80, 0x7FFF},
        {0x7F7F, 0x4000, 0x0000, 0x7F80}, /* overflow */
        {0x0001, 0x3F00, 0x0000, 0x0000}, /* half the least subnormal: a tie */
        {0x0003, 0x3F00, 0x0000, 0x0002},
        {0x8000, 0x3F80, 0x8000, 0x8000},
        {0x3F80, 0x3F80, 0x3B80, 0x3F80}, /* 1 + 2^-8: a tie, to even */
        {0x3F81, 0x3F80, 0x3B80, 0x3F82}, /* 1 + 2^-7 + 2^-8 */
        {0x3F80, 0x3F80, 0x3B81, 0x3F81}, /* just above the tie */
        {0x3B80, 0x3F80, 0x3F80, 0x3F80},
        {0x3F81, 0x3B80, 0x3F80, 0x3F81}, /* (1 + 2^-7) * 2^-8 + 1: above the tie by 2^-15 */
        {0x4316, 0x3F80, 0xC308, 0x4160}, /* 150 - 136 */
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        const uint32_t got = tsr_fma_bf16x2(kCases[i].a, kCases[i].b, kCases[i].c);
        cr_assert_eq(got & 0xFFFF, kCases[i].result, "case %zu: %04x", i, got & 0xFFFF);
    }
    /* Rounds once, not twice: 7 * 37 = 259 is a tie that is rounded up to 260. With 2^-120 less, which no double can
     * represent with it, it is rounded down. */
    cr_assert_eq(tsr_fma_bf16x2(0x40E0, 0x4214, 0x0000), 0x4382);
    cr_assert_eq(tsr_fma_bf16x2(0x40E0, 0x4214, 0x8380), 0x4381);
    cr_assert_eq(tsr_fma_bf16x2(0x40E0, 0x4214, 0x0380), 0x4382);
}
