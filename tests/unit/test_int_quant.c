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
        tsr_encode_int_f32_ref(&x, 1, 1, &code, &got);
        tsr_error_int_f32_ref(&x, 1, &code, &got, &error);
        const double t = (double)((float)(x / code.scale) + code.zero);
        const double clamped = fmin(fmax(t, code.low), code.high);
        cr_assert_eq(got, (int8_t)nearest(clamped, code.away), "x %a scale %a zero %g", x, code.scale, code.zero);
        const double v = (double)got - (double)code.zero, q = (double)x / (double)code.scale;
        cr_assert_float_eq(error.max_e, fabs(q - v), 1e-4 * (1 + fabs(q)));
        if (fabs(t - (double)code.high - 0.5) > 1e-4 && fabs(t - (double)code.low + 0.5) > 1e-4)
            cr_assert_eq(error.saturated, t > code.high + 0.5 || t < code.low - 0.5);
        cr_assert_eq(error.flushed, x != 0 && v == 0);
    }
}

enum { MAX = 9000 };

static bool same(const tsr_int_error *a, const tsr_int_error *b)
{
    return a->sum_q2 == b->sum_q2 && a->sum_e2 == b->sum_e2 && a->sum_qv == b->sum_qv && a->max_e == b->max_e &&
           a->max_at == b->max_at && a->nonzero == b->nonzero && a->flushed == b->flushed &&
           a->saturated == b->saturated;
}

enum { WHOLE = 65536 - 2 * 128 }; /* finite BF16 values */

static void every_value(uint16_t x[WHOLE])
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        if ((bits & 0x7F80) != 0x7F80)
            *x++ = (uint16_t)bits;
    }
}

/* The first put ties and the ends of the range among the values; then any scale, and such as are stored. */
static float some_scale(size_t s)
{
    static const float kScales[] = {1,         0x1p-7f,        0x1.8p-9f, 3.14159e-3f,      0x1.010102p-8f,
                                    0x1p-110f, 0x1p-149f,      0x1p120f,  0x1.fffffep-101f, 0x1.000002p-100f,
                                    0x1p100f,  0x1.fffffep127f};
    const uint32_t kept = s % 3 == 0 ? 0xFFFF0000u : s % 3 == 1 ? 0xFFFFE000u : 0xFFFFFFFFu; /* BF16, F16, FP32 */
    uint32_t bits;
    float scale = random_code().scale;
    if (s < sizeof kScales / sizeof *kScales)
        return kScales[s];
    memcpy(&bits, &scale, sizeof bits);
    bits = (bits | (uint32_t)(random_bits() & 0x7FFFFF)) & kept;
    memcpy(&scale, &bits, sizeof scale);
    return scale > 0 ? scale : 1;
}

Test(int_quant, whole_domain_of_bf16)
{
    enum { SCALES = 120 };
    static uint16_t x[WHOLE], some[WHOLE];
    static int8_t want[WHOLE], got[WHOLE];
    const size_t n = WHOLE;
    tsr_cpu_kernels k;
    every_value(x);
    tsr_cpu_kernels_init(&k, tsr_cpu_flags());
    for (size_t s = 0; s < SCALES; s++) {
        const float scale = some_scale(s);
        for (int variant = 0; variant < 8; variant++) {
            const tsr_int_code code = {.scale = scale,
                                       .low = variant & 1 ? -8 : -128,
                                       .high = variant & 1 ? 7 : 127,
                                       .zero = variant & 2 ? -5 : 0,
                                       .amax = 0x1.FEp127f,
                                       .away = (variant & 4) != 0};
            tsr_encode_int_bf16_ref(x, n, n, &code, want);
            k.encode_int_bf16(x, n, n, &code, got);
            cr_assert_arr_eq(got, want, n, "scale %a variant %d", scale, variant);
            /* Those that the scale may have been made for. */
            tsr_int_code usual = code;
            usual.amax = 0;
            size_t m = 0;
            for (size_t i = 0; i < n; i++) {
                const uint32_t bits = (uint32_t)(x[i] & 0x7FFF) << 16;
                float size;
                memcpy(&size, &bits, sizeof size);
                if (!(size <= 1000 * scale))
                    continue;
                usual.amax = fmaxf(usual.amax, size);
                some[m++] = x[i];
            }
            tsr_encode_int_bf16_ref(some, m, m + 1, &usual, want);
            k.encode_int_bf16(some, m, m + 1, &usual, got);
            cr_assert_arr_eq(got, want, m, "scale %a variant %d", scale, variant);
        }
    }
}

/* Where the codes of int4 change moves with the significand of the scale alone: all that F16 and BF16 have. */
Test(int_quant, int4_at_every_significand_of_stored_scales)
{
    enum { SIGNIFICANDS = 1024 };
    static uint16_t x[WHOLE];
    static int8_t want[WHOLE], got[WHOLE];
    tsr_cpu_kernels k;
    every_value(x);
    tsr_cpu_kernels_init(&k, tsr_cpu_flags());
    for (int s = 0; s < SIGNIFICANDS; s++) {
        for (int away = 0; away < 2; away++) {
            const float scale = ldexpf(1 + (float)s / SIGNIFICANDS, s % 30 - 20);
            const tsr_int_code code = {.scale = scale, .low = -8, .high = 7, .amax = 7.5f * scale, .away = away != 0};
            tsr_encode_int_bf16_ref(x, WHOLE, WHOLE, &code, want);
            k.encode_int_bf16(x, WHOLE, WHOLE, &code, got);
            cr_assert_arr_eq(got, want, WHOLE, "scale %a away %d", scale, away);
        }
    }
}

/* Scales of all bits that put the quotient of each significand some ulps around each tie. */
Test(int_quant, int4_within_ulps_of_ties)
{
    enum { AROUND = 64, ONE = 0x3F80, ULPS = 4 };
    uint16_t x[AROUND];
    int8_t want[AROUND], got[AROUND];
    tsr_cpu_kernels k;
    tsr_cpu_kernels_init(&k, tsr_cpu_flags());
    for (uint32_t pattern = ONE; pattern < ONE + 128; pattern++) {
        for (uint32_t i = 0; i < AROUND; i++)
            x[i] = (uint16_t)((pattern + i / 2 - AROUND / 4) | i % 2 << 15);
        for (int trial = 0; trial < 8 * 2 * (2 * ULPS + 1); trial++) {
            const float tie = 0.5f + (float)(trial % 8), value = 1 + (float)(pattern - ONE) / 128;
            const float middle = value / tie;
            uint32_t bits;
            tsr_int_code code = {.low = -8, .high = 7, .amax = 8 * value, .away = trial / 8 % 2 != 0};
            memcpy(&bits, &middle, sizeof bits);
            bits += (uint32_t)(trial / 16) - ULPS;
            memcpy(&code.scale, &bits, sizeof bits);
            tsr_encode_int_bf16_ref(x, AROUND, AROUND, &code, want);
            k.encode_int_bf16(x, AROUND, AROUND, &code, got);
            cr_assert_arr_eq(got, want, AROUND, "%a around tie %g, scale %a, away %d", value, tie, code.scale,
                             code.away);
        }
    }
}

/* Rows in groups of every size, of which some are of zero points, or of another range, or of scales beyond the usual.
 */
Test(int_quant, groups_of_every_size)
{
    enum { COLS = 700 };
    static uint16_t x[COLS];
    static tsr_int_code codes[COLS];
    static int8_t want[COLS + 1], got[COLS + 1];
    tsr_cpu_kernels k;
    tsr_cpu_kernels_init(&k, tsr_cpu_flags());
    for (size_t group = 1; group <= COLS; group++) {
        for (unsigned kind = 0; kind < 4; kind++) {
            tsr_int_code first = random_code();
            first.zero = kind & 1 ? -3 : 0;
            first.scale = fmaxf(first.scale, 0x1p-90f);
            for (size_t g = 0; g < COLS; g++) {
                codes[g] = kind & 2 && g % 5 == 4 ? random_code() : first;
                codes[g].scale *= 1 + (float)(random_bits() % 1000) / 1000;
            }
            for (size_t i = 0; i < COLS; i++) {
                const float value = random_value(codes[i / group].scale);
                uint32_t bits;
                float size;
                memcpy(&bits, &value, sizeof bits);
                x[i] = (uint16_t)(bits >> 16);
                bits &= 0x7FFF0000u;
                memcpy(&size, &bits, sizeof size);
                codes[i / group].amax = fmaxf(codes[i / group].amax, size);
            }
            const size_t cols = COLS - random_bits() % 70;
            want[cols] = got[cols] = 77;
            tsr_encode_int_bf16_ref(x, cols, group, codes, want);
            k.encode_int_bf16(x, cols, group, codes, got);
            cr_assert_arr_eq(got, want, cols + 1, "group %zu kind %u", group, kind);
            static uint32_t amax[2][COLS];
            tsr_amax_groups_bf16_ref(x, cols, group, amax[0]);
            k.amax_groups_bf16(x, cols, group, amax[1]);
            cr_assert_arr_eq(amax[0], amax[1], (cols + group - 1) / group * sizeof **amax);
        }
    }
}

Test(int_quant, variants_equal_the_reference)
{
    static const unsigned kMasks[] = {TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};
    static float x[MAX], wide[MAX];
    static uint16_t narrow[MAX];
    static int8_t want[MAX + 1], got[MAX + 1], want_narrow[MAX + 1];
    for (int trial = 0; trial < 300; trial++) {
        const tsr_int_code code = random_code();
        const size_t n = trial % 3 == 0 ? random_bits() % MAX : random_bits() % 200;
        const size_t group = trial % 2 == 0 ? 32 : n + 1;
        static tsr_int_code codes[MAX / 32 + 1];
        for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
            codes[i] = code;
            codes[i].scale *= 1 + (float)(i % 7) / 8;
        }
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;
            float as_narrow;
            x[i] = random_value(code.scale);
            memcpy(&bits, &x[i], sizeof bits);
            narrow[i] = (uint16_t)(bits >> 16);
            bits &= 0x7FFF0000u;
            memcpy(&as_narrow, &bits, sizeof bits);
            codes[i / group].amax = fmaxf(codes[i / group].amax, as_narrow);
        }
        tsr_int_error e, f, g, h;
        float low, high, low2, high2;
        want[n] = got[n] = 77;
        tsr_encode_int_f32_ref(x, n, group, codes, want);
        tsr_encode_int_bf16_ref(narrow, n, group, codes, want_narrow);
        tsr_error_int_f32_ref(x, n, &code, want, &e);
        tsr_error_int_bf16_ref(narrow, n, &code, want_narrow, &g);
        tsr_range_f32_ref(x, n, &low, &high);
        for (size_t m = 0; m < sizeof kMasks / sizeof *kMasks; m++) {
            tsr_cpu_kernels k;
            tsr_cpu_kernels_init(&k, kMasks[m] & tsr_cpu_flags());
            k.encode_int_f32(x, n, group, codes, got);
            cr_assert_arr_eq(got, want, n + 1);
            k.encode_int_bf16(narrow, n, group, codes, got);
            cr_assert_arr_eq(got, want_narrow, n);
            k.error_int_f32(x, n, &code, want, &f);
            k.error_int_bf16(narrow, n, &code, want_narrow, &h);
            cr_assert(same(&e, &f) && same(&g, &h), "mask %u n %zu", kMasks[m], n);
            static uint32_t amax[2][MAX / 32 + 1];
            tsr_amax_groups_bf16_ref(narrow, n, group, amax[0]);
            k.amax_groups_bf16(narrow, n, group, amax[1]);
            for (size_t i = 0; i * group < n; i++) {
                cr_assert_eq(amax[0][i], amax[1][i]);
                cr_assert_eq(memcmp(&amax[0][i], &codes[i].amax, sizeof **amax), 0);
            }
            k.widen_bf16(narrow, n, wide);
            for (size_t i = 0; i < n; i++) {
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
