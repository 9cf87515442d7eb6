/* Bounds and frequencies against formulas written out here once more, from the papers and headers that define them: a
 * bound that is looser than it says lets faults of kernels through. */
#include "verify/kernels/gemm_oracle.h"
#include "verify/mla/rope.h"

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

/* Half a step of a format with `bits` of mantissa, at x. */
static double half_step(double x, int bits, double least)
{
    return floor_to_power(fmax(x, least)) * exp2(-bits - 1);
}

static const struct {
    tsr_out out;
    int bits;
    double least;
} kOuts[] = {{TSR_OUT_BF16, 7, 0x1p-126}, {TSR_OUT_F16, 10, 0x1p-14}, {TSR_OUT_F32, 23, 0x1p-126}};

/* One row by one column, of codes that change from step to step, under two scales. */
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

/* What gemm_oracle.h writes of the promoted and the unpromoted accumulators, step by step. */
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

/* Whatever the formulas say: FP32 sums in the worst order that the bound speaks of stay within it, and it is not ten
 * times what plain sums of one sign, which round the most, can show. */
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

Test(gemm_oracle, half_steps)
{
    static const double kAt[] = {1, 1.99, 2, 3, 1e-3, 0x1p-14, 0x1p-20, 1e-42, 65504};
    for (size_t i = 0; i < sizeof kAt / sizeof *kAt; i++) {
        for (size_t k = 0; k < 3; k++)
            expect_near(tsr_half_step(kOuts[k].out, kAt[i]), half_step(kAt[i], kOuts[k].bits, kOuts[k].least), "half");
    }
}

/* ---- RoPE ---- */

enum { DIM = 64 };

static tsr_rope read_rope(const char *config, tsr_arena *arena)
{
    tsr_rope rope;
    tsr_err err;
    const tsr_checkpoint c = {.path = "test", .config = config, .config_size = strlen(config)};
    cr_assert_eq(tsr_rope_read(&rope, &c, DIM, arena, &err), TSR_OK, "%s", err.msg);
    return rope;
}

/* Peng et al. 2023, as DeepSeek-V3's modeling code and transformers write it. */
static double yarn(size_t i, double base, double factor, double trained, double fast, double slow)
{
    const double pi = acos(-1), plain = pow(base, -2.0 * (double)i / DIM);
    const double low = fmax(floor(DIM * log(trained / (fast * 2 * pi)) / (2 * log(base))), 0);
    const double high = fmin(ceil(DIM * log(trained / (slow * 2 * pi)) / (2 * log(base))), DIM - 1);
    const double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return plain / factor * ramp + plain * (1 - ramp);
}

/* What is not stated is 32 and 1, as in transformers; what is stated counts. */
Test(rope, yarn_has_the_papers_defaults)
{
    static const struct {
        const char *betas;
        double fast, slow;
    } kCases[] = {{"", 32, 1},
                  {", \"beta_fast\": 32", 32, 1},
                  {", \"beta_slow\": 1", 32, 1},
                  {", \"beta_slow\": 2", 32, 2},
                  {", \"beta_fast\": 16, \"beta_slow\": 0.5", 16, 0.5}};
    for (size_t k = 0; k < sizeof kCases / sizeof *kCases; k++) {
        char config[256];
        tsr_arena arena = {0};
        snprintf(config, sizeof config,
                 "{\"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, "
                 "\"original_max_position_embeddings\": 4096%s}}",
                 kCases[k].betas);
        const tsr_rope rope = read_rope(config, &arena);
        cr_assert_eq(rope.pairs, DIM / 2);
        for (size_t i = 0; i < rope.pairs; i++)
            expect_near(rope.frequency[i], yarn(i, 10000, 40, 4096, kCases[k].fast, kCases[k].slow), kCases[k].betas);
        expect_near(rope.gain, 0.1 * log(40) + 1, "gain");
        expect_near(rope.mscale_all, 1, "mscale_all");
        tsr_arena_free(&arena);
    }
}

Test(rope, defaults_of_the_others)
{
    tsr_arena arena = {0};
    const tsr_rope plain = read_rope("{}", &arena);
    const tsr_rope linear = read_rope("{\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 4}}", &arena);
    const tsr_rope llama3 = read_rope("{\"rope_theta\": 500000, \"rope_scaling\": {\"rope_type\": \"llama3\", "
                                      "\"factor\": 8, \"original_max_position_embeddings\": 8192}}",
                                      &arena);
    const double pi = acos(-1);
    for (size_t i = 0; i < DIM / 2; i++) {
        const double f = pow(10000, -2.0 * (double)i / DIM), g = pow(500000, -2.0 * (double)i / DIM);
        const double wave = 2 * pi / g, smooth = (8192 / wave - 1) / (4 - 1);
        expect_near(plain.frequency[i], f, "default");
        expect_near(linear.frequency[i], f / 4, "linear");
        expect_near(llama3.frequency[i],
                    wave < 8192.0 / 4   ? g
                    : wave > 8192.0 / 1 ? g / 8
                                        : (1 - smooth) * g / 8 + smooth * g,
                    "llama3");
    }
    tsr_arena_free(&arena);
}
