/* Tests RoPE's frequencies against a second implementation of the papers' formulas. */
#include "verify/mla/rope.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void expect_near(double got, double wanted, const char *what)
{
    cr_expect(fabs(got - wanted) <= 1e-12 * fabs(wanted), "%s: %.17g, and not %.17g", what, got, wanted);
}

enum { DIM = 64 };

static tsr_rope read_rope(const char *config, tsr_arena *arena)
{
    tsr_rope rope;
    tsr_err err;
    tsr_checkpoint c = {.path = "test", .config = config, .config_size = strlen(config)};
    cr_assert_eq(tsr_json_index_read(&c.config_index, "test", config, c.config_size, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(tsr_rope_read(&rope, &c, DIM, 10000, arena, &err), TSR_OK, "%s", err.msg);
    tsr_json_index_free(&c.config_index);
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

/* Default values are 32 and 1, as in transformers; stated values count. */
Test(rope, yarn_has_the_papers_defaults)
{
    static const struct {
        const char *type, *betas;
        double fast, slow;
    } kCases[] = {{"yarn", "", 32, 1},
                  {"deepseek_yarn", "", 32, 1},
                  {"yarn", ", \"beta_fast\": 32", 32, 1},
                  {"yarn", ", \"beta_slow\": 1", 32, 1},
                  {"yarn", ", \"beta_slow\": 2", 32, 2},
                  {"yarn", ", \"beta_fast\": 16, \"beta_slow\": 0.5", 16, 0.5}};
    for (size_t k = 0; k < sizeof kCases / sizeof *kCases; k++) {
        char config[256];
        tsr_arena arena = {0};
        snprintf(config, sizeof config,
                 "{\"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"%s\", \"factor\": 40, "
                 "\"original_max_position_embeddings\": 4096%s}}",
                 kCases[k].type, kCases[k].betas);
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
