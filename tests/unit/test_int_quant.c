/* Int codes: the reference against arithmetic in double, every variant against the reference. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/variants.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

static uint64_t random_state = 0xA0761D6478BD642Fu;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545F4914F6CDD1Du;
}

/* Values around multiples of half the scale, so that ties and near ties are common. */
static float random_value(float scale)
{
    const float steps = (float)((int)(random_bits() % 601) - 300) * 0.5f;
    const float nudge = (float)((int)(random_bits() % 5) - 2) * 0x1p-22f;
    const float plain = (float)((double)(random_bits() >> 11) * 0x1p-53 * 300 - 150);
    return scale * (random_bits() % 2 == 0 ? steps * (1 + nudge) : plain);
}

static tsr_int_code random_code(void)
{
    const bool int4 = random_bits() % 2 == 0;
    return (tsr_int_code){
        .scale = ldexpf(1.0f + (float)(random_bits() % 1000) / 1000, (int)(random_bits() % 260) - 145),
        .low = int4 ? -8 : -128,
        .high = int4 ? 7 : 127,
        .zero = random_bits() % 3 == 0 ? (float)((int)(random_bits() % 16) - 8) : 0,
        .away = random_bits() % 2 == 0,
    };
}

static double nearest(double x, bool away)
{
    return away ? round(x) : nearbyint(x);
}

Test(int_quant, reference_rounds_the_clamped_quotient)
{
    for (int trial = 0; trial < 200000; trial++) {
        const tsr_int_code code = random_code();
        const float x = random_value(code.scale);
        int8_t got;
        tsr_int_error error;
        tsr_quantize_int_ref(&x, 1, &code, &got, &error);
        const double t = (double)((float)(x / code.scale) + code.zero);
        const double clamped = fmin(fmax(t, code.low), code.high);
        cr_assert_eq(got, (int8_t)nearest(clamped, code.away), "x %a scale %a zero %g", x, code.scale, code.zero);
        const double v = (double)got - (double)code.zero, q = (double)x / (double)code.scale;
        cr_assert_float_eq(error.max_e, fabs(q - v), 1e-4 * (1 + fabs(q)));
        cr_assert_eq(error.saturated, t > code.high + 0.5 || t < code.low - 0.5);
        cr_assert_eq(error.flushed, x != 0 && v == 0);
    }
}

enum { MAX = 9000 };

Test(int_quant, variants_equal_the_reference)
{
    static const unsigned kMasks[] = {TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};
    static float x[MAX];
    static int8_t want[MAX + 1], got[MAX + 1];
    for (int trial = 0; trial < 300; trial++) {
        const tsr_int_code code = random_code();
        const size_t n = trial % 3 == 0 ? random_bits() % MAX : random_bits() % 200;
        for (size_t i = 0; i < n; i++)
            x[i] = random_value(code.scale);
        tsr_int_error e, f;
        float low, high, low2, high2;
        want[n] = got[n] = 77;
        tsr_quantize_int_ref(x, n, &code, want, &e);
        tsr_range_f32_ref(x, n, &low, &high);
        for (size_t m = 0; m < sizeof kMasks / sizeof *kMasks; m++) {
            tsr_cpu_kernels k;
            tsr_cpu_kernels_init(&k, kMasks[m] & tsr_cpu_flags());
            k.quantize_int(x, n, &code, got, &f);
            cr_assert_arr_eq(got, want, n + 1);
            cr_assert(e.sum_q2 == f.sum_q2 && e.sum_e2 == f.sum_e2 && e.sum_qv == f.sum_qv && e.max_e == f.max_e &&
                          e.max_at == f.max_at && e.nonzero == f.nonzero && e.flushed == f.flushed &&
                          e.saturated == f.saturated,
                      "mask %u n %zu", kMasks[m], n);
            uint16_t narrow[64];
            float wide[64];
            for (size_t i = 0; i < 64; i++)
                narrow[i] = (uint16_t)random_bits();
            k.widen_bf16(narrow, 64, wide);
            for (size_t i = 0; i < 64; i++) {
                uint32_t bits;
                memcpy(&bits, &wide[i], sizeof bits);
                cr_assert_eq(bits, (uint32_t)narrow[i] << 16);
            }
            k.range_f32(x, n, &low2, &high2);
            cr_assert(low == low2 && high == high2);
            cr_assert_eq(k.sum_codes(want, n), tsr_sum_codes_ref(want, n));
        }
    }
}

Test(int_quant, ranges_include_zero_and_tell_nan)
{
    tsr_cpu_kernels k;
    tsr_cpu_kernels_init(&k, tsr_cpu_flags());
    float x[70], low, high;
    for (size_t at = 0; at < 70; at++) {
        for (size_t i = 0; i < 70; i++)
            x[i] = 1 + (float)i;
        k.range_f32(x, 70, &low, &high);
        cr_assert(low == 0 && high == 70);
        x[at] = NAN;
        k.range_f32(x, 70, &low, &high);
        cr_assert(isnan(low) && isnan(high));
    }
}
