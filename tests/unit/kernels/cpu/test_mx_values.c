/* Tests decoding of MXFP4, MXFP8 and NVFP4: the scalar form against double, every form against the scalar one. */
#include "common/float_bits.h"
#include "tests/unit/kernels/cpu/instruction_sets.h"
#include "tests/unit/kernels/cpu/rounded.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Returns the FP32 product rounded to BF16, computed in double, if it is not infinite. */
static double by_double(double v, float t)
{
    return rounded(rounded(v * (double)t, 24, -126), 8, -126);
}

static float random_scale(void)
{
    static const float kCorners[] = {0,         0x1p-149f, 0x1p-133f,      0x1p-127f,        0x1p-126f,
                                     0x1p-125f, 0x1p-124f, 0x1.FFp-125f,   0x1.FFFFFEp-125f, 1,
                                     0x1p122f,  0x1p123f,  0x1.FFFFFEp123f};
    const uint64_t r = random_bits();
    if (r % 4 == 0)
        return kCorners[r / 4 % (sizeof kCorners / sizeof *kCorners)];
    if (r % 4 == 1) /* e4m3 times or over a global */
        return tsr_e4m3_to_f32((uint8_t)(r >> 8 & 0x7E)) *
               ldexpf(1 + (float)(r >> 20 & 1023) / 1024, -(int)(r >> 40 & 31));
    return tsr_f32_from_bits((uint32_t)(r >> 32) % tsr_f32_bits(0x1p124f));
}

Test(mx_values, the_definition_is_one_product_and_one_rounding)
{
    for (int trial = 0; trial < 4000; trial++) {
        const float t = random_scale();
        for (unsigned pair = 0; pair < 256; pair += 17) {
            const uint8_t byte = (uint8_t)pair;
            uint16_t y[2];
            float wide[2];
            tsr_decode_e2m1_bf16_ref(&byte, 2, 2, &t, y);
            tsr_decode_e2m1_f32_ref(&byte, 2, 2, &t, wide);
            for (unsigned i = 0; i < 2; i++) {
                const double v = (double)tsr_e2m1_to_f32((uint8_t)(pair & 15));
                cr_assert_eq((double)wide[i], rounded(v * (double)t, 24, -126));
                cr_assert_eq((double)tsr_f32_from_bf16(y[i]), by_double(v, t), "code %u scale %a", pair & 15, t);
                cr_assert_eq(y[i] >> 15, pair >> 3 & 1);
            }
        }
    }
}

static const size_t kGroups[] = {32, 16, 2, 64};

Test(mx_values, every_form_decodes_e2m1_alike)
{
    enum { MOST = 4096 };
    static uint8_t packed[MOST / 2];
    static uint16_t want[MOST], got[MOST + 1];
    static float t[MOST / 2], wanted[MOST], wide[MOST + 1];
    tsr_cpu_kernels k[SETS];
    const int sets = take_sets(k);
    for (int trial = 0; trial < 6000; trial++) {
        const size_t group = kGroups[trial % 4], n = random_bits() % (MOST / group + 1) * group;
        const bool usual = trial % 3 == 0;
        for (size_t i = 0; i < n / 2; i++)
            packed[i] = (uint8_t)random_bits();
        for (size_t i = 0; i < n / group; i++)
            t[i] = usual ? ldexpf(1 + (float)(random_bits() % 65536) / 65536, (int)(random_bits() % 30) - 25)
                         : random_scale();
        tsr_decode_e2m1_bf16_ref(packed, n, group, t, want);
        tsr_decode_e2m1_f32_ref(packed, n, group, t, wanted);
        for (int s = 0; s < sets; s++) {
            got[n] = 0xA5A5;
            k[s].decode_e2m1_bf16(packed, n, group, t, got);
            for (size_t i = 0; i < n && memcmp(got, want, n * sizeof *got) != 0; i++) /* says which */
                cr_assert_eq(got[i], want[i], "set %d group %zu: code %x times %a is %04x, not %04x", s, group,
                             packed[i / 2] >> i % 2 * 4 & 15, (double)t[i / group], got[i], want[i]);
            cr_assert_eq(got[n], 0xA5A5);
            wide[n] = 1.25f;
            k[s].decode_e2m1_f32(packed, n, group, t, wide);
            for (size_t i = 0; i < n && memcmp(wide, wanted, n * sizeof *wide) != 0; i++)
                cr_assert_eq(tsr_f32_bits(wide[i]), tsr_f32_bits(wanted[i]), "set %d group %zu: code %x times %a", s,
                             group, packed[i / 2] >> i % 2 * 4 & 15, (double)t[i / group]);
            cr_assert_eq(wide[n], 1.25f);
        }
    }
}

/* Tests all codes with all powers of two, including those that overflow. */
Test(mx_values, every_code_with_every_power_of_two)
{
    uint8_t packed[16], codes[256];
    uint16_t want[256], got[256];
    tsr_cpu_kernels k;
    for (unsigned i = 0; i < 16; i++)
        packed[i] = (uint8_t)(i | (15 - i) << 4);
    for (unsigned i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (int e = -127; e <= 127; e++) {
            float t[16];
            uint8_t scales[8];
            for (unsigned i = 0; i < 16; i++)
                t[i] = ldexpf(1, e);
            memset(scales, e + 127, sizeof scales);
            for (unsigned g = 0; g < 2; g++) {
                tsr_decode_e2m1_bf16_ref(packed, 32, kGroups[g], t, want);
                k.decode_e2m1_bf16(packed, 32, kGroups[g], t, got);
                cr_assert_arr_eq(got, want, 32 * sizeof *want);
            }
            cr_assert(tsr_decode_mxfp8_bf16_ref(codes, 256, scales, want));
            cr_assert(k.decode_mxfp8_bf16(codes, 256, scales, got));
            cr_assert_arr_eq(got, want, sizeof want, "set %d exponent %d", s, e);
            cr_assert_not(k.decode_mxfp8_bf16(codes + 128, 96, scales, got));
            uint8_t sound[256]; /* NaN makes its neighbours use the definition, so this repeats the test without NaN */
            for (unsigned i = 0; i < 256; i++)
                sound[i] = (uint8_t)((i & 0x7F) == 0x7F ? i - 1 : i);
            tsr_decode_mxfp8_bf16_ref(sound, 256, scales, want);
            cr_assert_not(k.decode_mxfp8_bf16(sound, 256, scales, got));
            cr_assert_arr_eq(got, want, sizeof want, "set %d exponent %d", s, e);
            for (unsigned i = 0; i < 127 && e < 119; i++)
                cr_assert_eq((double)tsr_f32_from_bf16(want[i]),
                             by_double((double)tsr_e4m3_to_f32((uint8_t)i), ldexpf(1, e)));
        }
    }
}

Test(mx_values, mxfp8_with_mixed_scales_finds_every_nan)
{
    enum { MOST = 1024 };
    static uint8_t codes[MOST], scales[MOST / 32];
    static uint16_t want[MOST], got[MOST + 1];
    tsr_cpu_kernels k;
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (int trial = 0; trial < 3000; trial++) {
            const size_t n = random_bits() % (MOST / 32 + 1) * 32;
            for (size_t i = 0; i < n; i++) {
                codes[i] = (uint8_t)random_bits();
                codes[i] -= trial % 2 == 0 && (codes[i] & 0x7F) == 0x7F;
                scales[i / 32] = (uint8_t)(random_bits() % 255);
            }
            got[n] = 0xA5A5;
            const bool nan = tsr_decode_mxfp8_bf16_ref(codes, n, scales, want);
            cr_assert_eq(k.decode_mxfp8_bf16(codes, n, scales, got), nan);
            cr_assert_arr_eq(got, want, n * sizeof *want);
            cr_assert_eq(got[n], 0xA5A5);
        }
    }
}

/* ---- scales ---- */

Test(mx_values, every_form_reads_scales_alike)
{
    enum { N = 256 };
    uint8_t bytes[N];
    float t[N], ones[N];
    tsr_cpu_kernels k;
    for (unsigned i = 0; i < N; i++)
        bytes[i] = (uint8_t)(i * 37);
    for (int s = -1; s < SETS && (s < 0 || take_set(s, &k)); s++) {
        if (s < 0)
            tsr_cpu_kernels_init(&k, 0);
        k.values_e8m0(bytes, N, t);
        for (unsigned i = 0; i < N; i++)
            cr_assert_eq(tsr_f32_bits(t[i]), tsr_f32_bits(tsr_f32_from_e8m0(bytes[i])));
        for (unsigned trial = 0; trial < 200; trial++) {
            const float global = ldexpf(1 + (float)(random_bits() % 65536) / 65536, (int)(trial % 200) - 100);
            k.values_e4m3(bytes, N, global, trial % 2 == 0, t);
            for (unsigned i = 0; i < N; i++) {
                const float v = tsr_e4m3_to_f32(bytes[i]), want = trial % 2 == 0 ? v / global : v * global;
                cr_assert((isnan(want) && isnan(t[i])) || tsr_f32_bits(t[i]) == tsr_f32_bits(want));
            }
        }
        for (size_t n = 0; n < N; n++) {
            ones[n] = 1;
            uint8_t largest = 0;
            for (size_t i = 0; i < n; i++)
                largest = bytes[i] > largest ? bytes[i] : largest;
            cr_assert_eq(k.largest_byte(bytes, n), largest);
            k.values_e8m0(bytes, n, ones);
            cr_assert_eq(ones[n], 1);
        }
    }
}
