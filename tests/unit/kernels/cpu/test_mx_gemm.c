/* Tests products of MXFP4, MXFP8 and NVFP4 against sums in double: within the stated bound, and exact if nothing is
 * rounded.
 *
 * Also tests the quantization of activations to these formats. */
#include "common/float_bits.h"
#include "kernels/cpu/mx_gemm.h"
#include "kernels/cpu/mx_tokens.h"
#include "kernels/cpu/variants.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { M = 9, N = 11, K = 32 * 37, LDD = N + 3, GROUPS = K / 16 };

typedef struct operand {
    uint8_t codes[N * K * 2], scales[N * GROUPS];
    tsr_mx_matrix matrix;
} operand;

static operand a, w;
static float d[M * LDD];

static const tsr_mx_form kForms[] = {TSR_MX_FORM_MXFP4, TSR_MX_FORM_MXFP8, TSR_MX_FORM_NVFP4_TIMES,
                                     TSR_MX_FORM_NVFP4_DIVIDED};
enum { FORMS = sizeof kForms / sizeof *kForms };

static bool is_nvfp4(tsr_mx_form form)
{
    return tsr_mx_form_group(form) == 16;
}

/* Makes codes of any kind except NaN, and scales of moderate size. */
static void make(operand *o, tsr_mx_form form, float global)
{
    for (size_t i = 0; i < sizeof o->codes; i++) {
        o->codes[i] = (uint8_t)random_bits();
        if (form == TSR_MX_FORM_MXFP8 && (o->codes[i] & 0x7F) == 0x7F)
            o->codes[i] ^= 1;
    }
    for (size_t i = 0; form == TSR_MX_FORM_BF16 && i < sizeof o->codes; i += 2)
        o->codes[i + 1] = (uint8_t)((random_bits() & 0x80) | (0x3B + random_bits() % 5)); /* 2^-9 to 2 */
    for (size_t i = 0; i < sizeof o->scales; i++)
        o->scales[i] = (uint8_t)(is_nvfp4(form) ? random_bits() % 0x7F : 120 + random_bits() % 16);
    o->matrix = (tsr_mx_matrix){.form = form, .codes = o->codes, .scales = o->scales, .global = global};
}

static double code_of(const operand *o, size_t at)
{
    if (o->matrix.form == TSR_MX_FORM_BF16)
        return (double)tsr_f32_from_bits((uint32_t)(o->codes[2 * at] | o->codes[2 * at + 1] << 8) << 16);
    if (o->matrix.form == TSR_MX_FORM_MXFP8)
        return (double)tsr_e4m3_to_f32(o->codes[at]);
    return (double)tsr_e2m1_to_f32(o->codes[at / 2] >> at % 2 * 4);
}

static double scale_of(const operand *o, size_t at)
{
    switch (o->matrix.form) {
    case TSR_MX_FORM_BF16:
        return 1;
    case TSR_MX_FORM_NVFP4_TIMES:
        return (double)(tsr_e4m3_to_f32(o->scales[at]) * o->matrix.global);
    case TSR_MX_FORM_NVFP4_DIVIDED:
        return (double)(tsr_e4m3_to_f32(o->scales[at]) / o->matrix.global);
    default:
        return ldexp(1, o->scales[at] - 127);
    }
}

static double exact(size_t i, size_t j, size_t k, double *mass)
{
    const size_t group = tsr_mx_form_group(w.matrix.form), groups = k / group;
    double sum = 0;
    *mass = 0;
    for (size_t x = 0; x < k; x++) {
        const double term = code_of(&a, i * k + x) * scale_of(&a, i * groups + x / group) *
                            (code_of(&w, j * k + x) * scale_of(&w, j * groups + x / group));
        sum += term;
        *mass += fabs(term);
    }
    return sum;
}

static void run(size_t k)
{
    const tsr_mx_gemm_args args = {.a = a.matrix, .w = w.matrix, .d = d, .m = M, .n = N, .k = k, .ldd = LDD};
    memset(d, 0xFF, sizeof d);
    tsr_mx_gemm_reference(&args);
}

Test(mx_gemm, it_is_within_its_bound_of_double)
{
    for (size_t f = 0; f < 2 * FORMS; f++) {
        const tsr_mx_form form = kForms[f / 2];
        make(&a, f % 2 == 0 ? form : TSR_MX_FORM_BF16, 0.0123f);
        make(&w, form, 1.7e-3f);
        const size_t k = f % 3 == 0 ? 32 : K;
        run(k);
        double worst = 0, mass;
        for (size_t i = 0; i < M; i++) {
            for (size_t j = 0; j < N; j++) {
                const double error = fabs((double)d[i * LDD + j] - exact(i, j, k, &mass));
                const size_t steps = tsr_mx_gemm_roundings(k, tsr_mx_form_group(form));
                cr_assert_leq(error, 1.01 * (double)steps * 0x1p-24 * mass, "form %d, [%zu, %zu]", (int)form, i, j);
                worst = fmax(worst, error / mass);
            }
            for (size_t j = N; j < LDD; j++)
                cr_assert(isnan(d[i * LDD + j]), "it wrote beyond its columns");
        }
        cr_assert_leq(worst, 0x1p-24 * 8, "form %d: %g of the mass", (int)form,
                      worst); /* a wrong value is far beyond */
    }
}

/* Products of e2m1 are multiples of 1/4, so with scales near one another no sum is rounded. */
Test(mx_gemm, mxfp4_is_exact_where_scales_are_alike)
{
    double mass;
    make(&a, TSR_MX_FORM_MXFP4, 0);
    make(&w, TSR_MX_FORM_MXFP4, 0);
    for (size_t i = 0; i < sizeof a.scales; i++) {
        a.scales[i] = (uint8_t)(127 + i % 3);
        w.scales[i] = (uint8_t)(126 - i % 2);
    }
    run(K);
    for (size_t i = 0; i < M; i++) {
        for (size_t j = 0; j < N; j++)
            cr_assert_eq((double)d[i * LDD + j], exact(i, j, K, &mass));
    }
}

Test(mx_gemm, forms_say_how_their_codes_lie)
{
    cr_assert_eq(tsr_mx_form_bytes(TSR_MX_FORM_BF16, 64), 128);
    cr_assert_eq(tsr_mx_form_bytes(TSR_MX_FORM_MXFP4, 64), 32);
    cr_assert_eq(tsr_mx_form_bytes(TSR_MX_FORM_MXFP8, 64), 64);
    cr_assert_eq(tsr_mx_form_group(TSR_MX_FORM_BF16), 0);
    cr_assert_str_eq(tsr_mx_form_name(TSR_MX_FORM_NVFP4_DIVIDED), "NVFP4");
    cr_assert_eq(tsr_mx_gemm_roundings(7168, 16), 16 + 14 + 5);
}

/* ---- activations ---- */

static uint16_t x[M * K];
static uint8_t codes[M * K], scales[M * GROUPS];

/* Makes numbers of all sizes, a group of zeros, and a group with an outlier. */
static void draw_tokens(void)
{
    for (size_t i = 0; i < M * K; i++) {
        const double value = ldexp((double)(random_bits() >> 40) * 0x1p-23 - 1, (int)(i / 32 % 12) - 6);
        x[i] = i / 32 == 5 ? 0 : tsr_bf16_from_f32((float)(i == 777 ? 4096 : value));
    }
}

Test(mx_gemm, tokens_get_the_least_power_of_two_that_does_not_clip)
{
    tsr_cpu_kernels kernels;
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
    draw_tokens();
    for (size_t f = 0; f < 2; f++) {
        const bool bytes = kForms[f] == TSR_MX_FORM_MXFP8;
        const tsr_mx_matrix to = {.form = kForms[f]};
        const double largest = bytes ? 448 : 6;
        tsr_quantize_tokens_mx(&kernels, x, M, K, &to, codes, scales);
        for (size_t g = 0; g < M * K / 32; g++) {
            const double t = ldexp(1, scales[g] - 127);
            double amax = 0;
            for (size_t i = g * 32; i < g * 32 + 32; i++) {
                const double value = (double)tsr_f32_from_bf16(x[i]);
                const double got =
                    t * (double)(bytes ? tsr_e4m3_to_f32(codes[i]) : tsr_e2m1_to_f32(codes[i / 2] >> i % 2 * 4));
                const double step = fmax(bytes ? 0x1p-9 : 0.5, exp2(floor(log2(fabs(value / t))) - (bytes ? 3 : 1)));
                cr_assert_leq(fabs(got - value), value == 0 ? 0 : step / 2 * t, "%g became %g", value, got);
                amax = fmax(amax, fabs(value));
            }
            cr_assert(amax == 0 ? scales[g] == 0 : amax <= largest * t && amax > largest * t / 2, "group %zu", g);
        }
    }
}

Test(mx_gemm, tokens_of_nvfp4_are_made_by_the_kernels_of_its_codes)
{
    static uint8_t wanted[M * K], wanted_scales[M * GROUPS];
    static float t[M * GROUPS];
    static uint32_t amax[M * GROUPS];
    tsr_cpu_kernels kernels;
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
    draw_tokens();
    for (unsigned times = 0; times < 2; times++) {
        const float global = times != 0 ? 4096.0f / 2688 : 2688 / 4096.0f;
        const tsr_mx_matrix to = {.form = times != 0 ? TSR_MX_FORM_NVFP4_TIMES : TSR_MX_FORM_NVFP4_DIVIDED,
                                  .global = global};
        const tsr_nvfp4_recipe recipe = {.global = global, .multiplies = times != 0};
        tsr_quantize_tokens_mx(&kernels, x, M, K, &to, codes, scales);
        tsr_amax_groups_bf16_ref(x, M * K, 16, amax);
        tsr_scale_nvfp4_ref(amax, M * GROUPS, &recipe, wanted_scales, t);
        tsr_encode_e2m1_bf16_ref(x, M * K, 16, t, TSR_E2M1_EVEN, wanted);
        cr_assert_eq(memcmp(scales, wanted_scales, sizeof scales), 0);
        cr_assert_eq(memcmp(codes, wanted, M * K / 2), 0);
        cr_assert_eq(scales[777 / 16], 0x7E); /* the outlier's group reaches the end of the range */
    }
}
