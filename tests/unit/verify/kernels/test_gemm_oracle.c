/* Tests the error bounds of products against the formulas of their header. A bound that is too large would hide
 * faults of kernels. */
#include "verify/kernels/gemm_oracle.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { K = 256, STEP = 32 };

static void expect_near(double got, double wanted, const char *what)
{
    cr_expect(fabs(got - wanted) <= 1e-12 * fabs(wanted), "%s: %.17g, and not %.17g", what, got, wanted);
}

static double floor_to_power(double x)
{
    return exp2(floor(log2(x)));
}

/* Returns half a step of a format with `bits` of mantissa, at x. */
static double half_step(double x, int bits, double least)
{
    return floor_to_power(fmax(x, least)) * exp2(-bits - 1);
}

static const struct {
    tsr_out out;
    int bits;
    double least;
} kOuts[] = {{TSR_OUT_BF16, 7, 0x1p-126}, {TSR_OUT_F16, 10, 0x1p-14}, {TSR_OUT_F32, 23, 0x1p-126}};

/* Computes one row by one column, of codes that change from step to step, with two scales. */
typedef struct product {
    double a[K], w[K];
    uint8_t a_codes[K], w_codes[K];
    float scale_a[2], scale_w[2];
} product;

static void make(product *p)
{
    static const uint8_t kCodes[] = {0x38, 0x40, 0xC4, 0x3C, 0x31, 0xB9, 0x48, 0x2A}; /* 1, 2, -3, 1.5, ... */
    for (size_t i = 0; i < K; i++) {
        p->a_codes[i] = kCodes[i % 7];
        p->w_codes[i] = kCodes[(i / 5 + i / STEP) % 8];
    }
    tsr_gemm_decode(p->a_codes, 1, K, p->a);
    tsr_gemm_decode(p->w_codes, 1, K, p->w);
    p->scale_a[0] = 0.5f, p->scale_a[1] = 3, p->scale_w[0] = 0.75f, p->scale_w[1] = 0.25f;
}

/* Computes the promoted and the unpromoted accumulators as gemm_oracle.h defines them, step by step. */
static tsr_exact expected(const product *p)
{
    tsr_exact e = {0};
    for (size_t tile = 0; tile < K / 128; tile++) {
        const double scale = (double)p->scale_a[tile] * (double)p->scale_w[tile];
        double sum = 0, mass = 0;
        for (size_t step = 0; step < 4; step++) {
            const size_t at = tile * 128 + step * STEP;
            double largest = 0, next = sum;
            for (size_t i = at; i < at + STEP; i++) {
                next += p->a[i] * p->w[i];
                mass += fabs(p->a[i] * p->w[i]);
                largest = fmax(largest, fabs(p->a[i] * p->w[i]));
            }
            const double in_tile = fmax(fabs(sum), largest),
                         in_all = fmax(fabs(e.value + scale * sum), largest * scale);
            e.slack[0] += 33 * 0x1p-13 * 1.01 * in_tile * scale;
            e.slack[1] += 33 * 0x1p-13 * 1.01 * in_all;
            e.variance[0] += 33 * pow(0x1p-13 * floor_to_power(in_tile) * scale, 2) / 3;
            e.variance[1] += 33 * pow(0x1p-13 * floor_to_power(in_all), 2) / 3;
            sum = next;
        }
        e.value += scale * sum;
        e.mass += scale * mass;
        e.underflow += 0x1p-126 * (mass + 2);
    }
    return e;
}

Test(gemm_oracle, is_what_its_header_says)
{
    product p;
    tsr_exact got;
    make(&p);
    const tsr_fp8_gemm_args args = {.a = p.a_codes,
                                    .w = p.w_codes,
                                    .scale_a = p.scale_a,
                                    .scale_w = p.scale_w,
                                    .m = 1,
                                    .n = 1,
                                    .k = K,
                                    .ld_scale_a = 1,
                                    .block_n = 128,
                                    .block_k = 128};
    const tsr_exact want = expected(&p);
    tsr_gemm_exact(&args, p.a, p.w, &got, 1);
    expect_near(got.value, want.value, "value");
    expect_near(got.mass, want.mass, "mass");
    expect_near(got.underflow, want.underflow, "underflow");
    for (size_t i = 0; i < 2; i++) {
        expect_near(got.slack[i], want.slack[i], i == 0 ? "slack, promoted" : "slack, unpromoted");
        expect_near(got.variance[i], want.variance[i], i == 0 ? "variance, promoted" : "variance, unpromoted");
    }
}

Test(gemm_oracle, bounds_are_no_looser_than_their_header_says)
{
    static const tsr_accumulation kAll[] = {TSR_ACCUMULATE_FP32, TSR_ACCUMULATE_PROMOTED, TSR_ACCUMULATE_UNPROMOTED};
    const double u = 0x1p-24, tiles = 2;
    product p;
    make(&p);
    const tsr_exact e = expected(&p);
    for (size_t i = 0; i < 3; i++) {
        const double sums = i == 0 ? (128 + tiles + 3) * u * e.mass : e.slack[i - 1] + 3 * (tiles + 2) * u * e.mass;
        const double lost = e.underflow + (i == 2 ? 33 * 0x1p-113 * 4 * tiles : 0);
        const double mean = i == 0 ? (128 + tiles + 3) * u * u * e.mass * e.mass : e.variance[i - 1];
        for (size_t k = 0; k < 3; k++) {
            char what[64];
            snprintf(what, sizeof what, "accumulation %zu, %s", i, tsr_out_name(kOuts[k].out));
            const double reach = fabs(e.value) + sums + lost,
                         h = half_step(fabs(e.value), kOuts[k].bits, kOuts[k].least);
            expect_near(tsr_gemm_bound(&e, kAll[i], kOuts[k].out, K),
                        sums + lost + half_step(reach, kOuts[k].bits, kOuts[k].least), what);
            expect_near(tsr_gemm_variance(&e, kAll[i], kOuts[k].out, K), h * h / 3 + lost * lost + mean, what);
        }
    }
}

/* FP32 sums in the worst order of the bound are within it. It is at most ten times the error of plain sums of one sign,
 * which have the largest rounding errors. */
Test(gemm_oracle, the_bound_of_fp32_is_near_what_happens)
{
    tsr_exact e = {.mass = 0};
    double worst = 0;
    srand(1);
    for (size_t trial = 0; trial < 2000; trial++) {
        float sum = 0;
        double exact = 0;
        for (size_t i = 0; i < 128; i++) {
            const float x = 1 + (float)(rand() % (1 << 20)) * 0x1p-23f;
            sum += x;
            exact += (double)x;
        }
        e.value = e.mass = exact;
        const double bound = tsr_gemm_bound(&e, TSR_ACCUMULATE_FP32, TSR_OUT_F32, 128);
        cr_assert_leq(fabs((double)sum - exact), bound);
        worst = fmax(worst, fabs((double)sum - exact) / bound);
    }
    cr_expect_gt(worst, 0.05, "%g of the bound", worst);
}

/* Adds four steps of a tile, or all steps of k, each of which truncates by 2^-14 of the sum on average. */
Test(gemm_oracle, slopes_are_what_their_header_says)
{
    expect_near(tsr_gemm_slope(TSR_ACCUMULATE_FP32, 7168), 0x1p-18, "FP32");
    expect_near(tsr_gemm_slope(TSR_ACCUMULATE_PROMOTED, 128), 4 * 0x1p-14, "promoted, one tile");
    expect_near(tsr_gemm_slope(TSR_ACCUMULATE_PROMOTED, 7168), 4 * 0x1p-14, "promoted");
    expect_near(tsr_gemm_slope(TSR_ACCUMULATE_UNPROMOTED, 128), 4 * 0x1p-14, "unpromoted, one tile");
    expect_near(tsr_gemm_slope(TSR_ACCUMULATE_UNPROMOTED, 7168), 56 * 4 * 0x1p-14, "unpromoted");
    expect_near(tsr_gemm_slope(TSR_ACCUMULATE_UNPROMOTED, 7169), 57 * 4 * 0x1p-14, "unpromoted, a ragged tile");
}

Test(gemm_oracle, half_steps)
{
    static const double kAt[] = {1, 1.99, 2, 3, 1e-3, 0x1p-14, 0x1p-20, 1e-42, 65504};
    for (size_t i = 0; i < sizeof kAt / sizeof *kAt; i++) {
        for (size_t k = 0; k < 3; k++)
            expect_near(tsr_half_step(kOuts[k].out, kAt[i]), half_step(kAt[i], kOuts[k].bits, kOuts[k].least), "half");
    }
}
