/* Tests decoding of int4 and narrowing to F16: the scalar forms against double, every form against the scalar one. */
#include "common/float_bits.h"
#include "tests/unit/kernels/cpu/instruction_sets.h"
#include "tests/unit/kernels/cpu/rounded.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { MOST = 700 };

static float random_scale(void)
{
    static const float kCorners[] = {0,        0x1p-149f, 0x1p-133f,      0x1p-126f, 0x1p-25f, 0x1.8p-25f, 0x1p-24f,
                                     0x1p-14f, 1,         0x1.FFFFFEp12f, 0x1p13f,   0x1p123f, -0x1p-13f,  -0x1.8p-3f};
    const uint64_t r = random_bits();
    if (r % 3 == 0)
        return kCorners[r / 3 % (sizeof kCorners / sizeof *kCorners)];
    return ldexpf(1 + (float)(r >> 40) / 0x1p24f, (int)(r >> 8 & 31) - 26) * (r & 128 ? 1 : -1);
}

typedef struct row {
    size_t n, group;
    bool zeros;
    uint8_t packed[MOST / 2 + 1];
    float scale[MOST], zero[MOST];
} row;

static void fill(row *r, int trial)
{
    static const size_t kGroups[] = {32, 128, 64, 16, 2, 24, MOST};
    r->group = kGroups[trial % 7];
    r->n = random_bits() % MOST;
    r->n -= trial % 3 == 0 ? r->n % 32 : 0;
    r->zeros = trial % 2 == 0;
    for (size_t i = 0; i < sizeof r->packed; i++)
        r->packed[i] = (uint8_t)random_bits();
    for (size_t i = 0; i < MOST; i++) {
        r->scale[i] = random_scale();
        r->zero[i] = (float)(int)(random_bits() % 17) - 8;
    }
}

static double exact(const row *r, size_t i)
{
    const int code = (r->packed[i / 2] >> i % 2 * 4 & 15) - 8;
    return ((double)code - (r->zeros ? (double)r->zero[i / r->group] : 0)) * (double)r->scale[i / r->group];
}

Test(int4_values, the_definition_is_one_product_and_one_rounding)
{
    static row r;
    static uint16_t y[MOST];
    static float wide[MOST];
    for (int trial = 0; trial < 400; trial++) {
        fill(&r, trial);
        const float *const zero = r.zeros ? r.zero : NULL;
        tsr_decode_int4_f32_ref(r.packed, r.n, r.group, r.scale, zero, wide);
        for (size_t i = 0; i < r.n; i++)
            cr_assert_eq((double)wide[i], rounded(exact(&r, i), 24, -126));
        tsr_decode_int4_bf16_ref(r.packed, r.n, r.group, r.scale, zero, y);
        for (size_t i = 0; i < r.n; i++)
            cr_assert_eq((double)tsr_f32_from_bf16(y[i]), rounded((double)wide[i], 8, -126));
        tsr_decode_int4_f16_ref(r.packed, r.n, r.group, r.scale, zero, y);
        for (size_t i = 0; i < r.n; i++) {
            const double want = rounded((double)wide[i], 11, -14);
            cr_assert_eq((double)tsr_f32_from_f16(y[i]), fabs(want) > 65504 ? copysign(INFINITY, want) : want);
        }
    }
}

Test(int4_values, every_form_decodes_rows_alike)
{
    static row r;
    static uint16_t want[MOST], got[MOST + 1];
    static float wanted[MOST], wide[MOST + 1];
    tsr_cpu_kernels k;
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (int trial = 0; trial < 4000; trial++) {
            fill(&r, trial);
            const float *const zero = r.zeros ? r.zero : NULL;
            got[r.n] = 0xA5A5;
            tsr_decode_int4_bf16_ref(r.packed, r.n, r.group, r.scale, zero, want);
            k.decode_int4_bf16(r.packed, r.n, r.group, r.scale, zero, got);
            cr_assert_arr_eq(got, want, r.n * sizeof *want, "set %d, BF16, %zu by %zu", s, r.n, r.group);
            tsr_decode_int4_f16_ref(r.packed, r.n, r.group, r.scale, zero, want);
            k.decode_int4_f16(r.packed, r.n, r.group, r.scale, zero, got);
            cr_assert_arr_eq(got, want, r.n * sizeof *want, "set %d, F16, %zu by %zu", s, r.n, r.group);
            cr_assert_eq(got[r.n], 0xA5A5);
            wide[r.n] = 1.25f;
            tsr_decode_int4_f32_ref(r.packed, r.n, r.group, r.scale, zero, wanted);
            k.decode_int4_f32(r.packed, r.n, r.group, r.scale, zero, wide);
            cr_assert_arr_eq(wide, wanted, r.n * sizeof *wide, "set %d, FP32, %zu by %zu", s, r.n, r.group);
            cr_assert_eq(wide[r.n], 1.25f);
        }
    }
}

Test(int4_values, every_form_decodes_columns_alike)
{
    static uint32_t words[MOST];
    static row r;
    static float want[MOST], got[MOST + 1];
    tsr_cpu_kernels k;
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (int trial = 0; trial < 500; trial++) {
            fill(&r, trial);
            for (size_t i = 0; i < r.n; i++)
                words[i] = (uint32_t)random_bits();
            const bool int8 = trial % 2;
            const unsigned shift = (unsigned)(random_bits() % (int8 ? 4 : 8)) * (int8 ? 8 : 4);
            got[r.n] = 1.25f;
            tsr_decode_column_f32_ref(words, r.n, shift, int8 ? 255 : 15, r.scale, r.zero, want);
            k.decode_column_f32(words, r.n, shift, int8 ? 255 : 15, r.scale, r.zero, got);
            for (size_t i = 0; i < r.n; i++) {
                const double code = (double)(words[i] >> shift & (int8 ? 255 : 15));
                const double exact_one = (code - (double)r.zero[i]) * (double)r.scale[i];
                cr_assert(fabs(exact_one) >= 0x1p128 || (double)want[i] == rounded(exact_one, 24, -126));
            }
            cr_assert_arr_eq(got, want, r.n * sizeof *want);
            cr_assert_eq(got[r.n], 1.25f);
        }
    }
}

/* Every F16, every midpoint between two of them, and the FP32 neighbours of both; the same for BF16. */
Test(int4_values, every_form_narrows_alike)
{
    enum { EACH = 6, WHOLE = 65536 * EACH };
    static float x[WHOLE];
    static uint16_t want[WHOLE], got[WHOLE + 1];
    tsr_cpu_kernels k;
    for (int f16 = 0; f16 < 2; f16++) {
        size_t n = 0;
        for (unsigned bits = 0; bits < 65536; bits++) {
            const uint32_t at = f16 ? tsr_f32_bits(tsr_f32_from_f16((uint16_t)bits)) : bits << 16;
            const uint32_t half = f16 ? 1u << 12 : 1u << 15;
            const uint32_t around[EACH] = {at - 1, at, at + 1, at + half - 1, at + half, at + half + 1};
            for (size_t i = 0; i < EACH; i++) {
                x[n] = tsr_f32_from_bits(around[i]);
                n += !isnan(x[n]);
            }
        }
        for (size_t i = 0; i < n; i++)
            want[i] = f16 ? tsr_f16_from_f32(x[i]) : tsr_bf16_from_f32(x[i]);
        for (int s = -1; s < SETS && (s < 0 || take_set(s, &k)); s++) {
            if (s < 0)
                tsr_cpu_kernels_init(&k, 0);
            got[n] = 0xA5A5;
            (f16 ? k.narrow_f16 : k.narrow_bf16)(x, n, got);
            for (size_t i = 0; i < n; i++)
                cr_assert_eq(got[i], want[i], "set %d: %a", s, (double)x[i]);
            cr_assert_eq(got[n], 0xA5A5);
            for (size_t few = 0; few < 70; few++) {
                got[few] = 0xA5A5;
                (f16 ? k.narrow_f16 : k.narrow_bf16)(x + 1000, few, got);
                cr_assert_arr_eq(got, want + 1000, few * sizeof *got);
                cr_assert_eq(got[few], 0xA5A5);
            }
        }
    }
}

Test(int4_values, the_largest_bits_tell_signs_and_nan)
{
    static row r;
    tsr_cpu_kernels k;
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (int trial = 0; trial < 500; trial++) {
            uint32_t want = 0;
            fill(&r, trial);
            if (r.n > 0 && trial % 5 == 0)
                r.scale[random_bits() % r.n] = trial % 2 ? NAN : -0.0f;
            for (size_t i = 0; i < r.n; i++)
                want = tsr_f32_bits(r.scale[i]) > want ? tsr_f32_bits(r.scale[i]) : want;
            cr_assert_eq(tsr_largest_bits_ref(r.scale, r.n), want);
            cr_assert_eq(k.largest_bits(r.scale, r.n), want);
        }
    }
}
