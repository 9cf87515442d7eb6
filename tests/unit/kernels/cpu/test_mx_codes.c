/* Tests codes and scales of MXFP4, MXFP8 and NVFP4: the scalar forms against double, every form against the scalar
 * one for all BF16. */
#include "common/float_bits.h"
#include "tests/unit/kernels/cpu/instruction_sets.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { WHOLE = 65536 };

/* All finite numbers of BF16; the places of NaN and Inf hold zeros. */
static void every_value(uint16_t x[WHOLE])
{
    for (unsigned i = 0; i < WHOLE; i++)
        x[i] = (i & 0x7F80) == 0x7F80 ? 0 : (uint16_t)i;
}

static const double kMagnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/* ---- tables ---- */

Test(mx_codes, every_code_has_the_value_of_its_fields)
{
    for (unsigned code = 0; code < 16; code++) {
        const unsigned exponent = code >> 1 & 3, mantissa = code & 1;
        const double magnitude = exponent == 0 ? 0.5 * mantissa : ldexp(1 + 0.5 * mantissa, (int)exponent - 1);
        const float value = tsr_e2m1_to_f32((uint8_t)code);
        cr_assert_eq((double)fabsf(value), magnitude);
        cr_assert_eq((double)fabsf(value), kMagnitudes[code & 7]);
        cr_assert_eq(signbit(value) != 0, code >= 8);
        cr_assert_eq(tsr_e2m1_from_f32(value), code);
        cr_assert_eq(tsr_f32_bits(tsr_e2m1_to_f32((uint8_t)(code | 0xF0))), tsr_f32_bits(value));
    }
    for (unsigned code = 0; code < 256; code++) {
        const unsigned exponent = code >> 3 & 15, mantissa = code & 7;
        const double magnitude = exponent == 0 ? ldexp(mantissa, -9) : ldexp(1 + mantissa / 8.0, (int)exponent - 7);
        const float value = tsr_e4m3_to_f32((uint8_t)code);
        if ((code & 0x7F) == 0x7F) {
            cr_assert(isnan(value));
            continue;
        }
        cr_assert_eq((double)fabsf(value), magnitude);
        cr_assert_eq(signbit(value) != 0, code >= 128);
    }
    for (unsigned byte = 0; byte < 255; byte++)
        cr_assert_eq((double)tsr_f32_from_e8m0((uint8_t)byte), ldexp(1, (int)byte - 127));
    cr_assert(isnan(tsr_f32_from_e8m0(255)));
}

/* ---- scales ---- */

/* Returns the exponent by each rule, from its definition in words. */
static int exponent_by_rule(int rule, double amax, int emax, double largest)
{
    int e;
    const double mantissa = 2 * frexp(amax, &e); /* amax = mantissa * 2^(e - 1) */
    const int floor_log2 = e - 1;
    if (rule == 0)
        return floor_log2 - emax;
    if (rule == 1)
        return floor_log2 - emax + (mantissa >= 1.75);
    if (rule == 3)
        return floor_log2 - emax + (mantissa > 1);
    int k = -300; /* the least that does not clip */
    while (amax > ldexp(largest, k))
        k++;
    return k;
}

Test(mx_codes, scales_of_powers_of_two_follow_their_rules)
{
    static const uint32_t kLimits[2][4] = {{0x7FFFFF, 0x5FFFFF, 0x400000, 0}, {0x7FFFFF, 0x5FFFFF, 0x600000, 0}};
    for (unsigned bits = 0; bits < 0x7F80; bits++) {
        for (int kind = 0; kind < 2; kind++) {
            for (int rule = 0; rule < 4; rule++) {
                const int emax = kind == 0 ? 2 : 8;
                const uint32_t amax = bits << 16;
                const double x = (double)tsr_f32_from_bits(amax);
                const int k = x == 0 ? -300 : exponent_by_rule(rule, x, emax, kind == 0 ? 6 : 448);
                const int want = k < -127 ? 0 : k + 127;
                uint8_t scale;
                float t;
                tsr_scale_e8m0_ref(&amax, 1, kLimits[kind][rule], emax, &scale, &t);
                cr_assert_eq(scale, want, "amax %a rule %d: %d, not %d", x, rule, scale, want);
                cr_assert_eq((double)t, ldexp(1, scale - 127));
            }
        }
    }
}

Test(mx_codes, every_form_makes_the_same_scales)
{
    static uint32_t amax[0x7F80];
    static uint8_t want[0x7F80], got[0x7F80];
    static float want_t[0x7F80], got_t[0x7F80];
    tsr_cpu_kernels k;
    for (unsigned i = 0; i < 0x7F80; i++)
        amax[i] = i << 16 | (i % 3 == 0 ? 0 : (uint32_t)random_bits() & 0xFFFF);
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (unsigned trial = 0; trial < 200; trial++) {
            const size_t n = trial < 100 ? trial : 0x7F80 - trial, from = trial < 100 ? random_bits() % 32000 : 0;
            const uint32_t limit = (uint32_t)random_bits() & 0x7FFFFF;
            const tsr_nvfp4_recipe recipe = {ldexpf(1 + (float)(random_bits() % 4096) / 4096, (int)(trial % 40) - 20),
                                             trial % 2 == 0, trial % 4 < 2};
            tsr_scale_e8m0_ref(amax + from, n, limit, trial % 2 ? 2 : 8, want, want_t);
            k.scale_e8m0(amax + from, n, limit, trial % 2 ? 2 : 8, got, got_t);
            cr_assert_arr_eq(got, want, n);
            cr_assert_arr_eq(got_t, want_t, n * sizeof *want_t);
            tsr_scale_nvfp4_ref(amax + from, n, &recipe, want, want_t);
            k.scale_nvfp4(amax + from, n, &recipe, got, got_t);
            for (size_t i = 0; i < n; i++)
                cr_assert(got[i] == want[i] && tsr_f32_bits(got_t[i]) == tsr_f32_bits(want_t[i]),
                          "set %d amax %08x global %a multiplies %d: %02x %a, not %02x %a", s, amax[from + i],
                          recipe.global, recipe.multiplies, got[i], got_t[i], want[i], want_t[i]);
        }
    }
}

/* ---- E2M1 ---- */

/* The nearest code to a quotient that was rounded to FP32, from distances in double. */
static unsigned nearest_code(float q, bool down)
{
    const double a = fmin(fabs((double)q), 100);
    unsigned best = 0;
    for (unsigned code = 1; code < 8; code++) {
        const double here = fabs(a - kMagnitudes[code]), there = fabs(a - kMagnitudes[best]);
        if (here < there || (here == there && !down && code % 2 == 0))
            best = code;
    }
    return best;
}

Test(mx_codes, a_code_is_the_nearest_to_the_quotient)
{
    static const float kScales[] = {1,         0x1p-127f,      0x1p-126f,      0x1p-5f,
                                    0x1.5p-7f, 0x1.fffffep-6f, 0x1.000002p-9f, 0x1p20f};
    static uint16_t x[WHOLE];
    static uint8_t packed[WHOLE / 2];
    every_value(x);
    for (size_t s = 0; s < sizeof kScales / sizeof *kScales; s++) {
        for (int rounding = TSR_E2M1_EVEN; rounding <= TSR_E2M1_DOWN; rounding++) {
            tsr_encode_e2m1_bf16_ref(x, WHOLE, WHOLE, &kScales[s], (tsr_e2m1_rounding)rounding, packed);
            for (unsigned i = 0; i < WHOLE; i++) {
                float q = tsr_f32_from_bf16(x[i]) / kScales[s];
                if (rounding == TSR_E2M1_EVEN_BF16) /* meant for powers of two, but defined for all */
                    q = tsr_f32_from_bf16(tsr_bf16_from_f32(q));
                const bool down = rounding == TSR_E2M1_DOWN;
                const unsigned sign = down ? (q > 0 ? 0 : 8) : q < 0 ? 8 : 0;
                cr_assert_eq(packed[i / 2] >> i % 2 * 4 & 15, nearest_code(q, down) | sign, "%04x / %a, rounding %d",
                             x[i], kScales[s], rounding);
            }
        }
    }
}

static const size_t kGroups[] = {32, 16, 2, 64};

/* A row of BF16 or FP32 values with one scale for each group. */
typedef struct e2m1_row {
    const uint16_t *bf16;
    const float *f32; /* NULL: BF16 */
    size_t n, group;
    const float *scales;
    const char *what; /* the scales, for messages */
} e2m1_row;

static float value_of(const e2m1_row *row, size_t i)
{
    return row->f32 != NULL ? row->f32[i] : tsr_f32_from_bf16(row->bf16[i]);
}

/* Encodes by the kernels of one set of instructions, or by the reference if `k` is NULL. */
static void encode_e2m1(const tsr_cpu_kernels *k, const e2m1_row *row, tsr_e2m1_rounding rounding, uint8_t *codes)
{
    if (row->f32 != NULL)
        (k != NULL ? k->encode_e2m1_f32 : tsr_encode_e2m1_f32_ref)(row->f32, row->n, row->group, row->scales, rounding,
                                                                   codes);
    else
        (k != NULL ? k->encode_e2m1_bf16 : tsr_encode_e2m1_bf16_ref)(row->bf16, row->n, row->group, row->scales,
                                                                     rounding, codes);
}

/* Compares the forms of all sets of instructions with the reference, which defines the codes. */
static void compare_rows(const e2m1_row *row, tsr_e2m1_rounding rounding)
{
    static uint8_t want[WHOLE / 2], got[WHOLE / 2 + 1];
    const size_t bytes = row->n / 2;
    tsr_cpu_kernels k[SETS];
    const int sets = take_sets(k);
    encode_e2m1(NULL, row, rounding, want);
    for (int s = 0; s < sets; s++) {
        memset(got, 0xA5, bytes + 1);
        encode_e2m1(&k[s], row, rounding, got);
        cr_assert_eq(got[bytes], 0xA5);
        for (size_t i = 0; i < bytes && memcmp(got, want, bytes) != 0; i++) /* says which */
            cr_assert_eq(got[i], want[i], "%s, set %d, rounding %d, group %zu: %a %a / %a: %02x, not %02x", row->what,
                         s, (int)rounding, row->group, (double)value_of(row, 2 * i), (double)value_of(row, 2 * i + 1),
                         (double)row->scales[2 * i / row->group], got[i], want[i]);
    }
}

static void compare_e2m1(const uint16_t *x, size_t n, size_t group, const float *t, const char *what)
{
    const e2m1_row row = {.bf16 = x, .n = n, .group = group, .scales = t, .what = what};
    compare_rows(&row, TSR_E2M1_EVEN);
    if (strcmp(what, "power of two") == 0)
        compare_rows(&row, TSR_E2M1_EVEN_BF16);
    compare_rows(&row, TSR_E2M1_DOWN);
}

static void compare_e2m1_f32(const float *x, size_t n, size_t group, const float *t)
{
    const e2m1_row row = {.f32 = x, .n = n, .group = group, .scales = t, .what = "FP32"};
    for (int rounding = TSR_E2M1_EVEN; rounding <= TSR_E2M1_DOWN; rounding++)
        compare_rows(&row, (tsr_e2m1_rounding)rounding);
}

Test(mx_codes, whole_domain_of_bf16_with_every_power_of_two)
{
    static uint16_t x[WHOLE];
    static float t[WHOLE / 16];
    every_value(x);
    for (int e = -127; e < 127; e += sweep_step()) {
        for (size_t i = 0; i < WHOLE / 16; i++)
            t[i] = ldexpf(1, e);
        compare_e2m1(x, WHOLE, 32, t, "power of two");
    }
}

/* Makes divisors for which numbers of BF16 are ties, or an ulp or two from ties. */
static float near_tie(uint16_t *near)
{
    static const float kTies[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
    *near = (uint16_t)(random_bits() % (0x3F00 - 0x1000) + 0x1000);
    const float t = tsr_f32_from_bf16(*near) / kTies[random_bits() % 7];
    return tsr_f32_from_bits(tsr_f32_bits(t) + (uint32_t)(random_bits() % 5) - 2);
}

Test(mx_codes, quotients_next_to_ties)
{
    enum { N = 512 };
    uint16_t x[N];
    float t[N / 2], wide[N];
    for (int trial = 0; trial < 6000; trial++) {
        uint16_t near;
        const float divisor = near_tie(&near);
        const size_t group = kGroups[trial % 2];
        for (unsigned i = 0; i < N; i++)
            x[i] = (uint16_t)(near + i / 2 - N / 4) | (uint16_t)(i % 2 << 15);
        for (unsigned i = 0; i < N / 2; i++)
            t[i] = divisor;
        compare_e2m1(x, N, group, t, "near a tie");
        for (unsigned i = 0; i < N; i++)
            wide[i] = tsr_f32_from_bf16(x[i]);
        compare_e2m1_f32(wide, N, group, t);
    }
}

Test(mx_codes, groups_tails_and_unusual_scales)
{
    static const float kOdd[] = {0, 0x1p-149f, 0x1p-127f, 0x1p-101f, 0x1p-100f, 1, 0x1.000002p0f, 0x1p100f, 0x1.8p127f};
    static uint16_t x[4096];
    static float t[2048], wide[4096];
    for (int trial = 0; trial < 2000; trial++) {
        const size_t group = kGroups[trial % 4], n = random_bits() % (2048 / group) * group;
        for (size_t i = 0; i < n; i++)
            x[i] = (uint16_t)(random_bits() % 0x7F80 | (random_bits() & 0x8000));
        for (size_t i = 0; i < n / group; i++)
            t[i] = random_bits() % 16 == 0 ? kOdd[random_bits() % 9]
                                           : tsr_f32_from_bits((uint32_t)(random_bits() % 0x7F800000u));
        for (size_t i = 0; i < n; i++) { /* most numbers are near their scale */
            const uint32_t around = (tsr_f32_bits(t[i / group]) >> 16) + (uint32_t)(random_bits() % 600) - 300;
            if (random_bits() % 8 != 0 && around < 0x7F80)
                x[i] = (uint16_t)(around | (random_bits() & 0x8000));
        }
        compare_e2m1(x, n, group, t, "random");
        for (size_t i = 0; i < n; i++) { /* those of BF16, and their neighbours in FP32 */
            wide[i] = tsr_f32_from_bf16(x[i]);
            if (random_bits() % 2 == 0 && wide[i] != 0)
                wide[i] = tsr_f32_from_bits(tsr_f32_bits(wide[i]) + (uint32_t)(random_bits() % 3) - 1);
        }
        compare_e2m1_f32(wide, n, group, t);
    }
}

/* ---- MXFP8 ---- */

Test(mx_codes, mxfp8_on_the_whole_domain_with_every_scale)
{
    static uint16_t x[WHOLE];
    static uint8_t want[WHOLE], got[WHOLE], block[WHOLE], scales[WHOLE / 32];
    tsr_cpu_kernels k[SETS];
    const int sets = take_sets(k);
    every_value(x);
    for (unsigned byte = 0; byte < 255; byte += (unsigned)sweep_step()) {
        const float scale = ldexpf(1, (int)byte - 127);
        memset(scales, (int)byte, sizeof scales);
        tsr_encode_mxfp8_bf16_ref(x, WHOLE, scales, want);
        tsr_encode_e4m3_bf16_ref(x, 1, WHOLE, WHOLE, WHOLE, &scale, block, WHOLE);
        cr_assert_arr_eq(want, block, WHOLE);
        for (int s = 0; s < sets; s++) {
            k[s].encode_mxfp8_bf16(x, WHOLE, scales, got);
            cr_assert_arr_eq(got, want, WHOLE, "set %d, scale %u", s, byte);
        }
    }
}

Test(mx_codes, mxfp8_with_mixed_scales_and_tails)
{
    static uint16_t x[2048];
    static uint8_t want[2048], got[2049], scales[64];
    tsr_cpu_kernels k;
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (int trial = 0; trial < 2000; trial++) {
            const size_t n = random_bits() % 65 * 32;
            for (size_t i = 0; i < n; i++) {
                scales[i / 32] = (uint8_t)(i % 32 == 0 ? random_bits() % 255 : scales[i / 32]);
                const uint64_t around = (scales[i / 32] * 128u + random_bits() % 2000 + 128 * 100) % 0x7F80;
                x[i] = (uint16_t)((trial % 2 ? around : random_bits() % 0x7F80) | (random_bits() & 0x8000));
            }
            got[n] = 0xA5;
            tsr_encode_mxfp8_bf16_ref(x, n, scales, want);
            k.encode_mxfp8_bf16(x, n, scales, got);
            cr_assert_arr_eq(got, want, n);
            cr_assert_eq(got[n], 0xA5);
        }
    }
}
