/* Models the GPU's instructions, and the conversions made of them. */
#include "kernels/cpu/fast_dequant.h"

#include "common/float_bits.h"

#include <math.h>
#include <string.h>

uint32_t tsr_prmt(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned nibble = selector >> 4 * i & 0xF;
        const uint32_t byte = bytes >> 8 * (nibble & 7) & 0xFF, sign = byte >> 7 ? 0xFF : 0;
        out |= (nibble & 8 ? sign : byte) << 8 * i;
    }
    return out;
}

uint32_t tsr_lop3(uint32_t a, uint32_t b, uint32_t c, uint8_t lut)
{
    uint32_t out = 0;
    for (unsigned i = 0; i < 8; i++) {
        const uint32_t here = (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
        out |= lut >> i & 1 ? here : 0;
    }
    return out;
}

/* A 16-bit format: its precision, and functions that read and write its numbers. */
typedef struct half_format {
    int precision;      /* significant bits */
    int least_exponent; /* exponent of the smallest subnormal */
    float (*read)(uint16_t bits);
    uint16_t (*write)(float exact);
} half_format;

static const half_format kF16 = {11, -24, tsr_f32_from_f16, tsr_f16_from_f32};
static const half_format kBf16 = {8, -133, tsr_f32_from_bf16, tsr_bf16_from_f32};

/* Returns a * b + c rounded to odd: a later rounding to fewer bits gives the same result as from the exact sum. If
 * the sum is inexact, the result is the neighbour with an odd last bit, which is never a tie. The product of 11-bit
 * numbers is exact. */
static double fma_to_odd(double a, double b, double c)
{
    const double product = a * b, sum = product + c;
    if (!isfinite(sum))
        return sum;
    const double c_seen = sum - product, error = (product - (sum - c_seen)) + (c - c_seen);
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if (error == 0 || (bits & 1))
        return sum;
    bits += (error > 0) == (sum > 0) ? 1 : UINT64_MAX;
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return odd;
}

static uint16_t round_half(const half_format *f, double x)
{
    if (isnan(x))
        return 0x7FFF;
    if (x == 0 || isinf(x))
        return f->write((float)x);
    int exponent;
    frexp(x, &exponent);
    const int ulp = exponent - f->precision > f->least_exponent ? exponent - f->precision : f->least_exponent;
    return f->write((float)ldexp(rint(ldexp(x, -ulp)), ulp));
}

static uint32_t fma_halves(const half_format *f, uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t out = 0;
    for (unsigned shift = 0; shift < 32; shift += 16) {
        const double sum = fma_to_odd(f->read((uint16_t)(a >> shift)), f->read((uint16_t)(b >> shift)),
                                      f->read((uint16_t)(c >> shift)));
        out |= (uint32_t)round_half(f, sum) << shift;
    }
    return out;
}

uint32_t tsr_sub_f16x2(uint32_t a, uint32_t b)
{
    return fma_halves(&kF16, a, 0x3C003C00, b ^ 0x80008000); /* 1.0 * a + -b */
}

uint32_t tsr_fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    return fma_halves(&kF16, a, b, c);
}

uint32_t tsr_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    return fma_halves(&kBf16, a, b, c);
}

/* The constants below are pairs of halves. */

void tsr_fast_int8_f16(uint32_t word, uint32_t out[2])
{
    const uint32_t k1024 = 0x64646464, k1152 = 0x64806480;
    out[0] = tsr_sub_f16x2(tsr_prmt(word, k1024, 0x5250), k1152);
    out[1] = tsr_sub_f16x2(tsr_prmt(word, k1024, 0x5351), k1152);
}

void tsr_fast_int8_bf16(uint32_t word, uint32_t out[2])
{
    static const uint32_t kPick[4] = {0x7650, 0x7652, 0x7651, 0x7653};
    uint32_t value[4];
    for (int i = 0; i < 4; i++) {
        const uint32_t sum = tsr_prmt(word, 0x4B000000, kPick[i]);
        float x;
        memcpy(&x, &sum, sizeof x);
        x -= 8388736.0f; /* 2^23 + 128 */
        memcpy(&value[i], &x, sizeof x);
    }
    out[0] = tsr_prmt(value[0], value[1], 0x7632);
    out[1] = tsr_prmt(value[2], value[3], 0x7632);
}

enum { AND_OR = (TSR_LOP3_A & TSR_LOP3_B) | TSR_LOP3_C };

void tsr_fast_int4_f16(uint32_t word, uint32_t out[4])
{
    const uint32_t k1024 = 0x64006400, k1032 = 0x64086408, k16th = 0x2C002C00, kMinus72 = 0xD480D480;
    for (int i = 0; i < 4; i += 2, word >>= 8) {
        out[i] = tsr_sub_f16x2(tsr_lop3(word, 0x000F000F, k1024, AND_OR), k1032);
        out[i + 1] = tsr_fma_f16x2(tsr_lop3(word, 0x00F000F0, k1024, AND_OR), k16th, kMinus72);
    }
}

void tsr_fast_int4_bf16(uint32_t word, uint32_t out[4])
{
    const uint32_t k128 = 0x43004300, k1 = 0x3F803F80, kMinus136 = 0xC308C308;
    for (int i = 0; i < 4; i++, word >>= 4)
        out[i] = tsr_fma_bf16x2(tsr_lop3(word, 0x000F000F, k128, AND_OR), k1, kMinus136);
}
