/* Tests quantization to integers: the scalar form against double, every form against the scalar one. */
#include "common/float_bits.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/variants.h"
#include "tests/unit/kernels/cpu/instruction_sets.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
    };
}

/* Tests all columns in one group. */
static tsr_int_row row_of(const tsr_int_code *code, const uint32_t *amax, bool away)
{
    return (tsr_int_row){&code->scale, code->zero == 0 ? NULL : &code->zero, amax, code->low, code->high, away, false};
}

static const uint32_t kLargest = 0x7F7F0000; /* the largest BF16 */

static double nearest(double x, bool away)
{
    return away ? round(x) : nearbyint(x);
}

Test(int_quant, reference_rounds_the_clamped_quotient)
{
    for (int trial = 0; trial < 200000; trial++) {
        const tsr_int_code code = random_code();
        const bool away = random_bits() % 2 == 0;
        const tsr_int_row row = row_of(&code, &kLargest, away);
        const float x = random_value(code.scale);
        int8_t got;
        tsr_int_error error;
        tsr_encode_int_f32_ref(&x, 1, 1, &row, &got);
        tsr_error_int_f32_ref(&x, 1, 1, &row, &got, &error);
        const double t = (double)((float)(x / code.scale) + code.zero);
        const double clamped = fmin(fmax(t, code.low), code.high);
        cr_assert_eq(got, (int8_t)nearest(clamped, away), "x %a scale %a zero %g", x, code.scale, code.zero);
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
           a->nonzero == b->nonzero && a->flushed == b->flushed && a->saturated == b->saturated;
}

enum { WHOLE = 65536 - 2 * 128 }; /* finite BF16 values */

static void every_value(uint16_t x[WHOLE])
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        if ((bits & 0x7F80) != 0x7F80)
            *x++ = (uint16_t)bits;
    }
}

/* The first scales make ties and the ends of the range frequent. Then come random scales, and stored ones. */
static float some_scale(size_t s)
{
    static const float kScales[] = {1,         0x1p-7f,        0x1.8p-9f, 3.14159e-3f,      0x1.010102p-8f,
                                    0x1p-110f, 0x1p-149f,      0x1p120f,  0x1.fffffep-101f, 0x1.000002p-100f,
                                    0x1p100f,  0x1.fffffep127f};
    const uint32_t kept = s % 3 == 0 ? 0xFFFF0000u : s % 3 == 1 ? 0xFFFFE000u : 0xFFFFFFFFu; /* BF16, F16, FP32 */
    if (s < sizeof kScales / sizeof *kScales)
        return kScales[s];
    const float scale =
        tsr_f32_from_bits((tsr_f32_bits(random_code().scale) | (uint32_t)(random_bits() & 0x7FFFFF)) & kept);
    return scale > 0 ? scale : 1;
}

Test(int_quant, whole_domain_of_bf16)
{
    enum { SCALES = 48 };
    static uint16_t x[WHOLE], some[WHOLE];
    static int8_t want[WHOLE], got[WHOLE];
    const size_t n = WHOLE;
    tsr_cpu_kernels k;
    every_value(x);
    tsr_cpu_kernels_init(&k, tsr_cpu_flags());
    for (size_t s = 0; s < SCALES; s++) {
        const float scale = some_scale(s);
        for (int variant = 0; variant < 16; variant++) {
            const tsr_int_code code = {.scale = scale,
                                       .low = variant & 1 ? -8 : -128,
                                       .high = variant & 1 ? 7 : 127,
                                       .zero = variant & 2 ? -5 : 0};
            tsr_int_row row = row_of(&code, &kLargest, (variant & 4) != 0);
            row.bf16 = (variant & 8) != 0;
            tsr_encode_int_bf16_ref(x, n, n, &row, want);
            k.encode_int_bf16(x, n, n, &row, got);
            cr_assert_arr_eq(got, want, n, "scale %a variant %d", scale, variant);
            /* Returns values that the scale may have been computed from. */
            uint32_t amax = 0;
            size_t m = 0;
            for (size_t i = 0; i < n; i++) {
                const uint32_t bits = (uint32_t)(x[i] & 0x7FFF) << 16;
                if (!(tsr_f32_from_bits(bits) <= 1000 * scale))
                    continue;
                amax = bits > amax ? bits : amax;
                some[m++] = x[i];
            }
            tsr_int_row usual = row_of(&code, &amax, row.away);
            usual.bf16 = row.bf16;
            tsr_encode_int_bf16_ref(some, m, m + 1, &usual, want);
            k.encode_int_bf16(some, m, m + 1, &usual, got);
            cr_assert_arr_eq(got, want, m, "scale %a variant %d", scale, variant);
        }
    }
}

/* Tests all significands of scales in F16 and BF16. */
Test(int_quant, every_significand_of_stored_scales)
{
    enum { SIGNIFICANDS = 1024 };
    static uint16_t x[WHOLE], some[WHOLE];
    static int8_t want[WHOLE], got[WHOLE];
    tsr_cpu_kernels k;
    every_value(x);
    tsr_cpu_kernels_init(&k, tsr_cpu_flags());
    for (int s = 0; s < SIGNIFICANDS; s += sweep_step()) {
        for (int variant = 0; variant < 4; variant++) {
            const float scale = ldexpf(1 + (float)s / SIGNIFICANDS, s % 30 - 20);
            const float zero = variant & 2 ? (float)(s % 16 - 8) : 0;
            const tsr_int_code code = {.scale = scale, .zero = zero, .low = -8, .high = 7};
            const uint32_t amax = tsr_f32_bits(64 * scale);
            const tsr_int_row row = row_of(&code, &amax, (variant & 1) != 0);
            size_t n = 0;
            for (size_t i = 0; i < WHOLE; i++) {
                if ((uint32_t)(x[i] & 0x7FFF) << 16 <= amax)
                    some[n++] = x[i];
            }
            tsr_encode_int_bf16_ref(some, n, n, &row, want);
            k.encode_int_bf16(some, n, n, &row, got);
            cr_assert_arr_eq(got, want, n, "scale %a zero %g away %d", scale, zero, row.away);
        }
    }
}

/* Tests rows in which each column has its own scale. */
typedef struct pairs {
    uint16_t x[65536];
    float scale[65536], zero[65536];
    uint32_t amax[65536];
    size_t n;
} pairs;

static void check_pairs(pairs *p, const tsr_cpu_kernels *k, float low, float high)
{
    static int8_t want[65536], got[65536];
    for (int away = 0; away < 2; away++) {
        const tsr_int_row row = {p->scale, p->zero[0] == 0 ? NULL : p->zero, p->amax, low, high, away != 0, false};
        tsr_encode_int_bf16_ref(p->x, p->n, 1, &row, want);
        k->encode_int_bf16(p->x, p->n, 1, &row, got);
        for (size_t i = 0; i < p->n && memcmp(got, want, p->n) != 0; i++) /* says which */
            cr_assert_eq(got[i], want[i], "%#x / %a + %g away %d: %d", p->x[i], p->scale[i], p->zero[i], away, got[i]);
    }
    p->n = 0;
}

/* Tests every BF16, up to powers of two, with every scale whose quotient is within ulps of `middle`. */
static void add_around(pairs *p, const tsr_cpu_kernels *k, double middle, float zero, float low, float high)
{
    enum { ONE = 0x3F80, SIGNIFICANDS = 128, ULPS = 3 };
    if (p->n + SIGNIFICANDS * (2 * ULPS + 1) > 65536)
        check_pairs(p, k, low, high);
    for (uint32_t pattern = ONE; pattern < ONE + SIGNIFICANDS; pattern += (uint32_t)sweep_step()) {
        const uint32_t scale = tsr_f32_bits((float)((double)tsr_f32_from_bits(pattern << 16) / fabs(middle)));
        for (uint32_t s = scale - ULPS; s <= scale + ULPS; s++, p->n++) {
            p->x[p->n] = (uint16_t)(pattern | (middle < 0) << 15);
            p->scale[p->n] = tsr_f32_from_bits(s);
            p->zero[p->n] = zero;
            p->amax[p->n] = pattern << 16;
        }
    }
}

/* A quotient that is wrong by an ulp changes a code only near a change of codes: at a tie minus the zero point, and,
 * because the sum of both is rounded, at half a unit of the tie's last place, or of the place below it, on either
 * side. */
static void check_all_ties(const tsr_cpu_kernels *k, float low, float high, float zero)
{
    static pairs p;
    for (float tie = low + 0.5f; tie < high; tie++) {
        const double middle = (double)tie - (double)zero;
        const double half = (double)(nextafterf(fabsf(tie), INFINITY) - fabsf(tie)) / 2;
        const double middles[] = {middle, middle - half, middle + half, middle - half / 2, middle + half / 2};
        for (size_t i = 0; i < sizeof middles / sizeof *middles; i++)
            add_around(&p, k, middles[i], zero, low, high);
    }
    check_pairs(&p, k, low, high);
}

Test(int_quant, around_every_tie)
{
    tsr_cpu_kernels k;
    tsr_cpu_kernels_init(&k, tsr_cpu_flags());
    for (int zero = -8; zero < 8; zero++)
        check_all_ties(&k, -8, 7, (float)zero);
    check_all_ties(&k, -128, 127, 0);
    for (int zero = -128; zero < 128; zero += 15)
        check_all_ties(&k, -128, 127, (float)zero);
}

/* Scales are so small that remainders are subnormal. A quotient next to a tie must be exact. */
Test(int_quant, around_ties_of_tiny_scales)
{
    enum { GROUP = 32, SIGNIFICANDS = 128, ULPS = 2 };
    tsr_cpu_kernels k[SETS];
    const int sets = take_sets(k);
    for (int exponent = -126; exponent < -98; exponent++) {
        for (int pattern = 0; pattern < SIGNIFICANDS; pattern += sweep_step()) {
            for (int tie = 0; tie < 7; tie++) {
                const float at = ldexpf(1 + (float)pattern / SIGNIFICANDS, exponent + 4);
                const uint32_t nearby = tsr_f32_bits((float)((double)at / (tie + 0.5)));
                for (uint32_t s = nearby - ULPS; s <= nearby + ULPS; s++) {
                    const tsr_int_code code = {.scale = tsr_f32_from_bits(s), .low = -8, .high = 7};
                    const uint32_t amax = tsr_f32_bits(at) + ((GROUP / 2) << 16);
                    const tsr_int_row row = row_of(&code, &amax, pattern % 2 == 0);
                    uint16_t x[GROUP];
                    int8_t want[GROUP], got[GROUP];
                    for (uint32_t i = 0; i < GROUP; i++)
                        x[i] = (uint16_t)((tsr_f32_bits(at) >> 16) + i - GROUP / 2);
                    tsr_encode_int_bf16_ref(x, GROUP, GROUP, &row, want);
                    for (int set = 0; set < sets; set++) {
                        k[set].encode_int_bf16(x, GROUP, GROUP, &row, got);
                        cr_assert_arr_eq(got, want, GROUP, "set %d: %a / %a", set, (double)at, (double)code.scale);
                    }
                }
            }
        }
    }
}

/* Tests rows in groups of every size, some with zero points, and some with scales or values out of the usual range. */
Test(int_quant, groups_of_every_size)
{
    enum { COLS = 700 };
    static uint16_t x[COLS];
    static float scale[COLS], zero[COLS];
    static uint32_t found[COLS];
    static int8_t want[COLS + 1], got[COLS + 1];
    tsr_cpu_kernels k;
    tsr_cpu_kernels_init(&k, tsr_cpu_flags());
    for (size_t group = 1; group <= COLS; group++) {
        for (unsigned kind = 0; kind < 4; kind++) {
            const tsr_int_code first = random_code();
            for (size_t g = 0; g < COLS; g++) {
                const bool other = kind & 2 && g % 23 == 4;
                scale[g] = other ? random_code().scale : fminf(fmaxf(first.scale, 0x1p-90f), 0x1p90f);
                scale[g] *= 1 + (float)(random_bits() % 1000) / 1000;
                zero[g] = (float)((int)(random_bits() % 16) - 8);
            }
            for (size_t i = 0; i < COLS; i++) {
                const float s = scale[i / group];
                const bool far = kind & 2 && i / group % 29 == 20 && s < 1;
                x[i] = (uint16_t)(tsr_f32_bits(random_value(s) * (far ? 0x1p40f : 1)) >> 16);
            }
            const size_t cols = COLS - random_bits() % 70, groups = (cols + group - 1) / group;
            const tsr_int_row row = {scale,
                                     kind & 1 ? zero : NULL,
                                     found,
                                     first.low,
                                     first.high,
                                     random_bits() % 2 == 0,
                                     random_bits() % 2 == 0};
            tsr_amax_groups_bf16_ref(x, cols, group, found);
            want[cols] = got[cols] = 77;
            tsr_encode_int_bf16_ref(x, cols, group, &row, want);
            k.encode_int_bf16(x, cols, group, &row, got);
            cr_assert_arr_eq(got, want, cols + 1, "group %zu kind %u", group, kind);
            for (size_t g = 0; g < groups; g++) {
                uint32_t largest = 0;
                for (size_t i = g * group; i < cols && i < (g + 1) * group; i++)
                    largest = (x[i] & 0x7FFFu) > largest ? x[i] & 0x7FFFu : largest;
                cr_assert_eq(found[g], largest << 16);
            }
        }
    }
}

/* Compares patterns of all kinds, with NaN and Inf, with comparisons of numbers. */
Test(int_quant, ranges_of_groups_of_every_size)
{
    enum { COLS = 1200, TOGETHER = 16 };
    static const unsigned kMasks[] = {0, TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512};
    static uint16_t x[COLS + 1];
    static float low[COLS + 1], high[COLS + 1];
    static uint32_t amax[COLS + 1];
    for (size_t trial = 0; trial < 4 * (size_t)COLS; trial++) {
        const size_t group = 1 + trial / 4, some = TOGETHER * group - 1 + trial % 4;
        const size_t cols = trial % 4 == 3 || some > COLS ? 1 + random_bits() % COLS : some;
        const size_t groups = (cols + group - 1) / group;
        const uint16_t kept = random_bits() % 2 == 0 ? 0xFFFF : random_bits() % 2 == 0 ? 0x7FFF : 0xBFFF;
        for (size_t i = 0; i < cols; i++)
            x[i] = (uint16_t)random_bits() & kept;
        x[cols] = trial % 8 < 4 ? 0x7FFF : 0xFFFF; /* would be the largest */
        for (size_t m = 0; m < sizeof kMasks / sizeof *kMasks; m++) {
            tsr_cpu_kernels k;
            tsr_cpu_kernels_init(&k, kMasks[m] & tsr_cpu_flags());
            low[groups] = high[groups] = 77;
            amax[groups] = 77;
            k.range_groups_bf16(x, cols, group, low, high);
            k.amax_groups_bf16(x, cols, group, amax);
            cr_assert(low[groups] == 77 && high[groups] == 77 && amax[groups] == 77);
            for (size_t g = 0; g < groups; g++) {
                uint32_t most = 0, least = 0;
                for (size_t i = g * group; i < cols && i < (g + 1) * group; i++) {
                    const uint32_t size = (uint32_t)(x[i] & 0x7FFF) << 16;
                    uint32_t *const end = x[i] >> 15 ? &least : &most;
                    *end = size > *end ? size : *end;
                }
                cr_assert_eq(tsr_f32_bits(high[g]), most);
                cr_assert_eq(tsr_f32_bits(low[g]), least | 0x80000000u);
                cr_assert_eq(amax[g], most > least ? most : least);
            }
        }
    }
}

/* Checks that no byte outside of the output was written. */
Test(int_quant, rows_end_where_they_end)
{
    enum { MOST = 200 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *const pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    static float ones[MOST], zero[MOST], low[MOST], high[MOST];
    static uint32_t amax[MOST];
    static int8_t codes[MOST];
    tsr_cpu_kernels k;
    tsr_cpu_kernels_init(&k, tsr_cpu_flags());
    for (size_t i = 0; i < MOST; i++)
        ones[i] = 1;
    for (size_t cols = 1; cols <= MOST; cols++) {
        const uint16_t *const x = (const uint16_t *)(pages + page) - cols;
        for (size_t group = 1; group <= cols; group++) {
            const tsr_int_row row = {ones, zero, amax, -8, 7, false, false};
            k.amax_groups_bf16(x, cols, group, amax);
            k.range_groups_bf16(x, cols, group, low, high);
            k.encode_int_bf16(x, cols, group, &row, codes);
        }
    }
    munmap(pages, 2 * page);
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
        const size_t group = (size_t[]){32, n + 1, 128, 1 + n / 5}[trial % 4];
        static float scale[MAX], zero[MAX];
        static uint32_t amax[MAX];
        for (size_t i = 0; i < sizeof scale / sizeof *scale; i++) {
            scale[i] = code.scale * (1 + (float)(i % 7) / 8);
            zero[i] = code.zero;
        }
        for (size_t i = 0; i < n; i++) {
            x[i] = random_value(code.scale);
            narrow[i] = (uint16_t)(tsr_f32_bits(x[i]) >> 16);
        }
        tsr_amax_groups_bf16_ref(narrow, n, group, amax);
        const tsr_int_row row = {
            scale, zero, amax, code.low, code.high, random_bits() % 2 == 0, random_bits() % 2 == 0};
        static tsr_int_error e[MAX], f[MAX], g[MAX], h[MAX];
        const size_t groups = (n + group - 1) / group;
        float low, high, low2, high2;
        want[n] = got[n] = 77;
        tsr_encode_int_f32_ref(x, n, group, &row, want);
        tsr_encode_int_bf16_ref(narrow, n, group, &row, want_narrow);
        tsr_error_int_f32_ref(x, n, group, &row, want, e);
        tsr_error_int_bf16_ref(narrow, n, group, &row, want_narrow, g);
        tsr_range_f32_ref(x, n, &low, &high);
        for (size_t i = 0; i < groups; i++) { /* the place of the largest error has it */
            const size_t first = i * group, width = n - first < group ? n - first : group;
            const tsr_int_code of = {scale[i], zero[i], code.low, code.high};
            const size_t at = tsr_int_error_at(narrow + first, NULL, width, &of, want_narrow + first, &g[i]);
            const double q = (double)tsr_f32_from_bits((uint32_t)narrow[first + at] << 16) / (double)scale[i];
            cr_assert(at < width);
            cr_assert_float_eq(g[i].max_e, fabs(q - (double)want_narrow[first + at] + (double)zero[i]),
                               1e-4 * (1 + fabs(q)));
        }
        for (size_t m = 0; m < sizeof kMasks / sizeof *kMasks; m++) {
            tsr_cpu_kernels k;
            tsr_cpu_kernels_init(&k, kMasks[m] & tsr_cpu_flags());
            k.encode_int_f32(x, n, group, &row, got);
            cr_assert_arr_eq(got, want, n + 1);
            k.encode_int_bf16(narrow, n, group, &row, got);
            cr_assert_arr_eq(got, want_narrow, n);
            k.error_int_f32(x, n, group, &row, want, f);
            k.error_int_bf16(narrow, n, group, &row, want_narrow, h);
            for (size_t i = 0; i < groups; i++)
                cr_assert(same(&e[i], &f[i]) && same(&g[i], &h[i]), "mask %u n %zu group %zu", kMasks[m], n, i);
            k.widen_bf16(narrow, n, wide);
            for (size_t i = 0; i < n; i++)
                cr_assert_eq(tsr_f32_bits(wide[i]), (uint32_t)narrow[i] << 16);
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
