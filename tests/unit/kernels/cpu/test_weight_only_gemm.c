/* Tests the weight-only product against sums in double, for every layout, width, type and kind of scale. */
#include "kernels/cpu/quantize_tokens.h"
#include "kernels/cpu/variants.h"
#include "kernels/cpu/weight_only_gemm.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { M = 3, N = 64, K = 256, LDD = N + 5 };

/* Returns evenly distributed numbers in [-1, 1). */
static double draw(void)
{
    return (double)(random_bits() >> 11) * 0x1p-52 - 1;
}

/* Rounds to 8 significant bits (BF16) or 11 (F16), ties to even; no number is subnormal or too large. */
static double rounded(double x, bool bf16)
{
    int exponent;
    frexp(x, &exponent);
    const int unit = exponent - (bf16 ? 8 : 11);
    return ldexp(nearbyint(ldexp(x, -unit)), unit);
}

typedef struct problem {
    int8_t codes[N * K]; /* [n][k] */
    uint32_t words[N * K / 4];
    float a[M * K], scales[K * N], zeros[K * N], d[M * LDD];
} problem;

static problem p;

static void make(const tsr_ft_format *format, bool bf16)
{
    const int half = 1 << (format->bits - 1);
    for (size_t i = 0; i < N * K; i++)
        p.codes[i] = (int8_t)floor(draw() * half);
    for (size_t i = 0; i < M * K; i++)
        p.a[i] = (float)rounded(draw(), bf16);
    for (size_t i = 0; i < K * N; i++) {
        p.scales[i] = (float)rounded(0.02 + 0.01 * draw(), bf16);
        p.zeros[i] = (float)rounded(draw(), bf16);
    }
    const tsr_interleave_args layout = {.format = format, .k = K, .n = N, .order = TSR_CODES_NK, .ld = K};
    tsr_interleave_ref(&layout, (const uint8_t *)p.codes, (uint8_t *)p.words);
    memset(p.d, 0xFF, sizeof p.d);
}

static tsr_weight_only_args args_of(const tsr_ft_format *format, size_t group, bool zeros, bool bf16)
{
    tsr_weight_only_args args = {.format = format, .words = p.words, .a = p.a, .scales = p.scales, .d = p.d};
    args.zeros = zeros ? p.zeros : NULL;
    args.m = M, args.n = N, args.k = K, args.ldd = LDD;
    args.group = group;
    args.bf16 = bf16;
    return args;
}

static void check(const tsr_ft_format *format, size_t group, bool zeros, bool bf16)
{
    const tsr_weight_only_args args = args_of(format, group, zeros, bf16);
    make(format, bf16);
    tsr_weight_only_reference(&args);
    for (size_t i = 0; i < M; i++) {
        for (size_t j = 0; j < N; j++) {
            double sum = 0, mass = 0;
            for (size_t k = 0; k < K; k++) {
                const size_t from = (group == 0 ? 0 : k / group) * N + j;
                double w = p.codes[j * K + k] * (double)p.scales[from] + (zeros ? (double)p.zeros[from] : 0);
                if (group != 0 || zeros)
                    w = rounded(w, bf16);
                sum += (double)p.a[i * K + k] * w;
                mass += fabs((double)p.a[i * K + k] * w);
            }
            cr_assert_leq(fabs((double)p.d[i * LDD + j] - sum), K * 0x1p-24 * mass,
                          "layout %s, int%d, group %zu, zeros %d, bf16 %d: [%zu, %zu] %g is not %g",
                          tsr_ft_layout_name(format->layout), format->bits, group, zeros, bf16, i, j,
                          (double)p.d[i * LDD + j], sum);
        }
        for (size_t j = N; j < LDD; j++)
            cr_assert(isnan(p.d[i * LDD + j]), "beyond the row");
    }
}

static const tsr_ft_target kTargets[] = {{.producer = TSR_FT_FASTERTRANSFORMER, .arch = 70},
                                         {.producer = TSR_FT_FASTERTRANSFORMER, .arch = 80},
                                         {.producer = TSR_FT_TRTLLM_0_10, .arch = 90},
                                         {.producer = TSR_FT_TRTLLM_MAIN, .arch = 90}};

Test(weight_only, every_layout_and_form)
{
    static const size_t kGroups[] = {0, 32, 64, 128, K};
    unsigned seen = 0;
    for (unsigned i = 0; i < 4 * 5 * 2 * 2 * 2; i++) {
        tsr_ft_target target = kTargets[i / 40];
        target.bits = i & 1 ? 4 : 8;
        tsr_ft_format format;
        if (tsr_ft_format_of(&target, &format, NULL) != TSR_OK || format.layout == TSR_FT_P)
            continue;
        seen |= 1u << format.layout;
        check(&format, kGroups[i / 8 % 5], i & 2, i & 4);
    }
    cr_assert_eq(seen & (1u << TSR_FT_T | 1u << TSR_FT_H | 1u << TSR_FT_R),
                 1u << TSR_FT_T | 1u << TSR_FT_H | 1u << TSR_FT_R);
}

/* Uses small integers and powers of two. Nothing is rounded, so the order of sums does not matter. */
Test(weight_only, exact_where_nothing_is_rounded)
{
    for (unsigned i = 0; i < 8; i++) {
        const tsr_ft_target target = {.producer = TSR_FT_FASTERTRANSFORMER, .arch = 80, .bits = i & 1 ? 4 : 8};
        tsr_ft_format format;
        cr_assert_eq(tsr_ft_format_of(&target, &format, NULL), TSR_OK);
        make(&format, true);
        for (size_t j = 0; j < M * K; j++)
            p.a[j] = (float)floor(draw() * 8);
        for (size_t j = 0; j < K * N; j++)
            p.scales[j] = ldexpf(1, (int)(j % 7) - 9);
        const size_t group = i & 2 ? 64 : 0;
        const tsr_weight_only_args args = args_of(&format, group, false, i & 4);
        tsr_weight_only_reference(&args);
        for (size_t at = 0; at < M * N; at++) {
            double sum = 0;
            for (size_t k = 0; k < K; k++)
                sum += (double)p.a[at / N * K + k] * p.codes[at % N * K + k] *
                       (double)p.scales[(group == 0 ? 0 : k / group) * N + at % N];
            cr_assert_eq((double)p.d[at / N * LDD + at % N], sum);
        }
    }
}

Test(quantize_tokens, static_int8_as_the_formula_has_it)
{
    const uint16_t x[6] = {0x3F80, 0xBF80, 0x3E80, 0x3EC0, 0x42C8, 0xC2C8}; /* 1, -1, 0.25, 0.375, 100, -100 */
    static const int8_t kWant[6] = {7, -1, 4, 5, 127, -128};                /* 0.25 / 0.25 + 3; 1.5 to even; cut off */
    int8_t codes[6];
    tsr_quantize_static_int8(x, 6, 0.25f, 3, codes);
    cr_assert_arr_eq(codes, kWant, sizeof codes);
}
