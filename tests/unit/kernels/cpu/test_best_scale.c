/* Tests the search for the best scales: every form against the losses of all candidates, computed here one by one. */
#include "common/float_bits.h"
#include "tests/unit/kernels/cpu/best_groups.h"
#include "tests/unit/kernels/cpu/instruction_sets.h"

#include <criterion/criterion.h>
#include <math.h>

/* ---- groups of E2M1 and E4M3 codes ---- */

enum { MOST_GROUPS = 64, COLUMNS = 32 };

/* The nearest value of a code to a quotient that was rounded to FP32, ties to even. */
static double nearest_value(float quotient, bool e4m3)
{
    const double a = fabs((double)quotient), largest = e4m3 ? 448 : 6, normal = e4m3 ? 0x1p-6 : 1;
    const double clamped = a < largest ? a : largest;
    const double step = ldexp(1, (clamped < normal ? ilogb(normal) : ilogb(clamped)) - (e4m3 ? 3 : 1));
    return copysign(nearbyint(clamped / step) * step, (double)quotient);
}

static double loss_of(const float *x, const float *weight, const tsr_best_groups *c, int scale)
{
    double loss = 0;
    for (size_t i = 0; i < c->group; i++) {
        const double e = (double)x[i] - nearest_value(x[i] / c->t[scale], c->e4m3) * (double)c->t[scale];
        loss += (weight == NULL ? 1 : (double)weight[i]) * (e * e);
    }
    return loss;
}

/* Returns the given scale if no other is better; otherwise the smallest of the best ones. */
static uint8_t best_of(const float *x, const float *weight, const tsr_best_groups *c, uint8_t given)
{
    double least = INFINITY;
    int best = given;
    bool zeros = true;
    for (size_t i = 0; i < c->group; i++)
        zeros = zeros && x[i] == 0;
    if (zeros)
        return given;
    if (given >= c->least && given <= c->most)
        least = loss_of(x, weight, c, given);
    for (int scale = c->least; scale <= c->most; scale++) {
        const double loss = loss_of(x, weight, c, scale);
        best = loss < least ? scale : best;
        least = loss < least ? loss : least;
    }
    return (uint8_t)best;
}

/* The formats, with candidates and values as quantize/mx_weight.c makes them. */
static tsr_best_groups format_of(unsigned kind, float global, float t[256])
{
    const bool e4m3 = kind == 2, e8m0 = kind != 0;
    tsr_best_groups c = {
        .group = e8m0 ? 32 : 16, .e4m3 = e4m3, .e8m0 = e8m0, .t = t, .least = e8m0 ? 0 : 1, .most = -1};
    for (int i = 0; i < 256; i++) {
        t[i] = e8m0 ? tsr_f32_from_e8m0((uint8_t)i) : tsr_e4m3_to_f32((uint8_t)i) / global;
        if (i < (e8m0 ? 255 : 127) && (e4m3 ? 448 : 6) * t[i] < 0x1.FFp127f)
            c.most = i;
    }
    while (c.t[c.least] == 0)
        c.least++;
    return c;
}

static void check(unsigned kind, const float *x, const float *weight, size_t groups, float global, bool own)
{
    float t[256];
    uint8_t given[MOST_GROUPS], want[MOST_GROUPS], got[MOST_GROUPS];
    const tsr_best_groups c = format_of(kind, global, t);
    tsr_cpu_kernels k;
    for (size_t i = 0; i < groups; i++)
        given[i] = (uint8_t)(random_bits() % 4 == 0 ? random_bits() % 127 : scale_of_amax(x + i * c.group, &c));
    memcpy(want, given, groups);
    tsr_best_groups_ref(x, weight, groups * c.group, &c, want);
    for (size_t i = 0; own && i < groups; i++) {
        const float *const w = weight == NULL ? NULL : weight + i * c.group;
        const uint8_t best = best_of(x + i * c.group, w, &c, given[i]);
        cr_assert_eq(want[i], best, "kind %u: the definition has %u, not %u", kind, want[i], best);
    }
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        memcpy(got, given, groups);
        k.best_groups(x, weight, groups * c.group, &c, got);
        for (size_t i = 0; i < groups; i++)
            cr_assert_eq(got[i], want[i], "kind %u, set %d, group %zu of %zu, given %u: %u, not %u", kind, s, i, groups,
                         given[i], got[i], want[i]);
    }
}

static void check_many(unsigned kind, uint64_t groups)
{
    static float x[MOST_GROUPS * COLUMNS], weight[MOST_GROUPS * COLUMNS];
    for (uint64_t done = 0, round = 0; done < groups; round++) {
        const size_t n = 1 + random_bits() % MOST_GROUPS;
        const float global = ldexpf(1 + (float)(random_bits() % 4096) / 4096, (int)(random_bits() % 24) - 6);
        fill(x, n * COLUMNS, round, 16);
        fill_weights(weight, n * COLUMNS, round);
        check(kind, x, round % 2 == 0 ? NULL : weight, n, global, round % 16 < 2);
        done += n;
    }
}

Test(best_scale, nvfp4_is_the_best_of_all_scales, .timeout = 0)
{
    check_many(0, groups_to_test(20000));
}

Test(best_scale, mxfp4_is_the_best_of_all_scales, .timeout = 0)
{
    check_many(1, groups_to_test(5000));
}

Test(best_scale, mxfp8_is_the_best_of_all_scales, .timeout = 0)
{
    check_many(2, groups_to_test(5000));
}

/* Global scales so large or small that values of scales are subnormal, zero or overflow. */
Test(best_scale, extreme_global_scales)
{
    static float x[MOST_GROUPS * 16];
    for (int exponent = -120; exponent <= 126; exponent += 3) {
        fill(x, MOST_GROUPS * 16, random_bits(), 16);
        check(0, x, NULL, MOST_GROUPS, ldexpf(1.3f, exponent), true);
    }
}

/* The smallest candidate wins among equals, unless the given one is among them. */
Test(best_scale, ties_keep_the_given_scale)
{
    float t[256], x[16] = {0};
    const tsr_best_groups c = format_of(0, 64, t);
    tsr_cpu_kernels k;
    x[3] = 6 * t[0x38]; /* 0.09375: also 4 * t[0x3C], 3 * t[0x40] and others */
    for (int s = -1; s < SETS && take_set_or_reference(s, &k); s++) {
        for (unsigned given = 1; given < 127; given++) {
            const bool equal = loss_of(x, NULL, &c, (int)given) == 0;
            uint8_t scale = (uint8_t)given;
            k.best_groups(x, NULL, 16, &c, &scale);
            cr_assert_eq(scale, equal ? given : 0x38, "set %d given %u: %u", s, given, scale);
        }
    }
}

/* ---- FP8 blocks ---- */

static double block_loss(const float *x, const float *weight, size_t rows, size_t cols, float t)
{
    double loss = 0;
    for (size_t i = 0; i < rows * cols; i++) {
        const double e = (double)x[i] - nearest_value(x[i] / t, true) * (double)t;
        loss += (weight == NULL ? 1 : (double)weight[i % cols]) * (e * e);
    }
    return loss;
}

/* Returns the given scale if no other is better; otherwise the smallest of the best ones. */
static float best_block(const float *x, const float *weight, size_t rows, size_t cols, bool bf16, float given)
{
    double least = block_loss(x, weight, rows, cols, given), counted = 0;
    float best = given;
    for (size_t i = 0; i < rows * cols; i++)
        counted += fabs((double)x[i]) * (weight == NULL ? 1 : (double)weight[i % cols]);
    for (unsigned bits = bf16 ? 1 : 128; counted > 0 && bits <= 0x7F7F; bits += bf16 ? 1 : 128) {
        const float t = tsr_f32_from_bf16((uint16_t)bits);
        if (!(448 * t < 0x1.FFp127f))
            break;
        const double loss = block_loss(x, weight, rows, cols, t);
        best = loss < least ? t : best;
        least = loss < least ? loss : least;
    }
    return best;
}

static void check_blocks(bool bf16, uint64_t blocks)
{
    enum { ROWS = 5, COLS = 40 };
    static float x[ROWS * COLS], weight[COLS];
    for (uint64_t round = 0; round < blocks; round++) {
        const size_t rows = 1 + random_bits() % ROWS, cols = 1 + random_bits() % COLS;
        float amax = 0;
        tsr_cpu_kernels k;
        fill(x, rows * cols, round, round % 4 == 0 ? 16 : ROWS * COLS + 8);
        fill_weights(weight, cols, round / 2);
        for (size_t i = 0; i < rows * cols; i++)
            amax = fmaxf(amax, fabsf(x[i]));
        uint32_t bits = tsr_bf16_from_f32(amax / 448);
        bits = bf16 ? (bits == 0 ? 1 : bits) : (bits + 127) / 128 * 128 + (bits == 0 ? 128 : 0);
        const float given = tsr_f32_from_bf16((uint16_t)bits), *const w = round % 2 == 0 ? NULL : weight;
        const float want = best_block(x, w, rows, cols, bf16, given);
        for (int s = -1; s < SETS && take_set_or_reference(s, &k); s++) {
            float got = given;
            k.best_fp8(x, w, rows, cols, bf16, &got);
            cr_assert_eq(got, want, "set %d, bf16 %d, %zu x %zu, weights %d: %a, not %a", s, bf16, rows, cols,
                         w != NULL, (double)got, (double)want);
        }
    }
}

Test(best_scale, fp8_blocks_get_the_best_power_of_two, .timeout = 0)
{
    check_blocks(false, groups_to_test(3000));
}

Test(best_scale, fp8_blocks_get_the_best_bf16, .timeout = 0)
{
    check_blocks(true, groups_to_test(3000) / 100);
}
