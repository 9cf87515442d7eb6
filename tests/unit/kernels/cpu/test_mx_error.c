/* Tests error sums of MXFP4, MXFP8 and NVFP4 codes: the scalar form against double, every form against the scalar
 * one. */
#include "common/float_bits.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/variants.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SETS = 3, GROUPS = 70, MOST = GROUPS * 32 };

static const unsigned kSets[SETS] = {TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};

static uint64_t random_state = 0x2545F4914F6CDD1Du;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545F4914F6CDD1Du;
}

static bool take_set(int s, tsr_cpu_kernels *k)
{
    tsr_cpu_kernels_init(k, kSets[s] & tsr_cpu_flags());
    return (kSets[s] & tsr_cpu_flags()) == kSets[s];
}

typedef enum kind { MXFP4, NVFP4, MXFP8, KINDS } kind;

typedef struct row {
    kind kind;
    size_t groups, group;
    uint16_t x[MOST];
    float wide[MOST], t[GROUPS];
    uint8_t codes[MOST];
} row;

static float scale_of(kind kind, bool unusual)
{
    static const float kOdd[] = {0, 0x1p-149f, 0x1p-127f, 0x1p-126f, 0x1p-101f, 0x1.Fp-101f, 0x1p-100f, 0x1p125f};
    if (unusual && kind == NVFP4)
        return kOdd[random_bits() % 8];
    const int exponent = unusual ? (int)(random_bits() % 246) - 127 : (int)(random_bits() % 40) - 30;
    return ldexpf(kind == NVFP4 ? 1 + (float)(random_bits() % 65536) / 65536 : 1, exponent);
}

/* One of `unusual` groups has a scale at the end of the range. Elements exceed the largest code, and many are equal. */
static void fill(row *r, kind kind, size_t groups, unsigned unusual)
{
    const float most = kind == MXFP8 ? 500 : 8;
    r->kind = kind;
    r->groups = groups;
    r->group = kind == NVFP4 ? 16 : 32;
    for (size_t g = 0; g < groups; g++) {
        const float t = r->t[g] = scale_of(kind, unusual != 0 && random_bits() % unusual == 0);
        const unsigned coarse = (unsigned)(random_bits() % 4), zeros = (unsigned)(random_bits() % 5);
        for (size_t i = g * r->group; i < (g + 1) * r->group; i++) {
            const float q = most * ((float)(random_bits() % 4096) / 2048 - 1);
            const float value = (coarse == 0 ? rintf(q) : q) * t;
            const bool zero = zeros == 0 || random_bits() % 8 == 0 || !isfinite(value);
            r->x[i] = zero ? (uint16_t)(random_bits() & 0x8000) : tsr_bf16_from_f32(value);
            r->wide[i] = tsr_f32_from_bf16(r->x[i]);
            if (!isfinite(r->wide[i])) {
                r->x[i] = 0;
                r->wide[i] = 0;
            }
        }
    }
    const size_t n = groups * r->group;
    if (kind != MXFP8) {
        tsr_encode_e2m1_bf16_ref(r->x, n, r->group, r->t, TSR_E2M1_EVEN, r->codes);
        return;
    }
    uint8_t scales[GROUPS];
    for (size_t g = 0; g < groups; g++)
        scales[g] = (uint8_t)(tsr_f32_bits(r->t[g]) >> 23);
    tsr_encode_mxfp8_bf16_ref(r->x, n, scales, r->codes);
}

typedef struct sums {
    float q2[GROUPS + 1], e2[GROUPS + 1], qv[GROUPS + 1];
    tsr_mx_error error;
} sums;

static void measure(const tsr_cpu_kernels *k, const row *r, bool wide, sums *s)
{
    const size_t n = r->groups * r->group;
    s->error = (tsr_mx_error){.q2 = s->q2, .e2 = s->e2, .qv = s->qv};
    s->q2[r->groups] = s->e2[r->groups] = s->qv[r->groups] = -1;
    if (r->kind == MXFP8 && wide)
        k->error_mxfp8_f32(r->wide, n, r->t, r->codes, &s->error);
    else if (r->kind == MXFP8)
        k->error_mxfp8_bf16(r->x, n, r->t, r->codes, &s->error);
    else if (wide)
        k->error_e2m1_f32(r->wide, n, r->group, r->t, r->codes, &s->error);
    else
        k->error_e2m1_bf16(r->x, n, r->group, r->t, r->codes, &s->error);
    cr_assert(s->q2[r->groups] == -1 && s->e2[r->groups] == -1 && s->qv[r->groups] == -1);
}

static void expect_same(const sums *got, const sums *want, size_t groups, const char *what)
{
    for (size_t g = 0; g < groups; g++)
        cr_assert(tsr_f32_bits(got->q2[g]) == tsr_f32_bits(want->q2[g]) &&
                      tsr_f32_bits(got->e2[g]) == tsr_f32_bits(want->e2[g]) &&
                      tsr_f32_bits(got->qv[g]) == tsr_f32_bits(want->qv[g]),
                  "%s, group %zu of %zu: %a %a %a, not %a %a %a", what, g, groups, (double)got->q2[g],
                  (double)got->e2[g], (double)got->qv[g], (double)want->q2[g], (double)want->e2[g],
                  (double)want->qv[g]);
    cr_assert_eq(tsr_f32_bits(got->error.largest), tsr_f32_bits(want->error.largest), "%s: %a, not %a", what,
                 (double)got->error.largest, (double)want->error.largest);
    cr_assert_eq(got->error.nonzero, want->error.nonzero, "%s, %zu groups: %llu of x are not 0, not %llu", what, groups,
                 (unsigned long long)got->error.nonzero, (unsigned long long)want->error.nonzero);
    cr_assert_eq(got->error.flushed, want->error.flushed, "%s", what);
}

Test(mx_error, the_definition_is_that_of_double)
{
    static row r;
    tsr_cpu_kernels k;
    tsr_cpu_kernels_init(&k, 0);
    for (int trial = 0; trial < 600; trial++) {
        sums s;
        double most = 0;
        uint64_t nonzero = 0, flushed = 0;
        fill(&r, (kind)(trial % KINDS), 1 + random_bits() % 20, 0);
        measure(&k, &r, trial % 2, &s);
        for (size_t g = 0; g < r.groups; g++) {
            double q2 = 0, e2 = 0, qv = 0;
            for (size_t i = g * r.group; i < (g + 1) * r.group; i++) {
                const float value =
                    r.kind == MXFP8 ? tsr_e4m3_to_f32(r.codes[i]) : tsr_e2m1_to_f32(r.codes[i / 2] >> i % 2 * 4);
                const double q = (double)r.wide[i] / (double)r.t[g], v = (double)value;
                q2 += q * q;
                e2 += (q - v) * (q - v);
                qv += q * v;
                most = fmax(most, fabs(q - v) * (double)r.t[g]);
                nonzero += q != 0;
                flushed += q != 0 && v == 0;
            }
            cr_assert_float_eq((double)s.q2[g], q2, 1e-5 * q2);
            cr_assert_float_eq((double)s.e2[g], e2, 1e-4 * e2 + 1e-10 * q2);
            cr_assert_float_eq((double)s.qv[g], qv, 1e-5 * q2);
        }
        cr_assert_float_eq((double)s.error.largest, most, 1e-5 * most);
        cr_assert_eq(s.error.nonzero, nonzero);
        cr_assert_eq(s.error.flushed, flushed);
    }
}

Test(mx_error, every_form_measures_alike)
{
    static row r;
    tsr_cpu_kernels plain, k;
    tsr_cpu_kernels_init(&plain, 0);
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (int trial = 0; trial < 3000; trial++) {
            sums want, got;
            char what[64];
            fill(&r, (kind)(trial % KINDS), random_bits() % (GROUPS + 1), (unsigned)(trial % 4) * 3);
            snprintf(what, sizeof what, "set %d, kind %d, trial %d", s, (int)r.kind, trial);
            measure(&plain, &r, false, &want);
            measure(&k, &r, false, &got);
            expect_same(&got, &want, r.groups, what);
            measure(&plain, &r, true, &got);
            expect_same(&got, &want, r.groups, "FP32 of BF16");
            for (size_t i = 0; i < r.groups * r.group; i++)
                r.wide[i] *= 1 + (float)(random_bits() % 256) * 0x1p-20f;
            measure(&plain, &r, true, &want);
            measure(&k, &r, true, &got);
            expect_same(&got, &want, r.groups, what);
        }
    }
}
