/* Tests the judgement of a kernel with simulated results: correct rounding passes, and faults that no single element
 * shows are found. */
#include "common/float_bits.h"
#include "verify/evidence/activations.h"
#include "verify/evidence/jobs.h"
#include "verify/evidence/kernel_tally.h"
#include "verify/kernels/gemm_oracle.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 64, COLS = 64, RUNS = 600 };

static uint64_t seed;

static double uniform(void) /* in [-1, 1) */
{
    return (double)(tsr_mix_bits(++seed) >> 11) * 0x1p-52 - 1;
}

static double normal(void)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += uniform() / 2;
    return sum;
}

typedef double wrong_fn(double x);

static double rounded(double x)
{
    return (double)tsr_f32_from_bf16(tsr_bf16_from_f64(x));
}

static double truncated(double x)
{
    const float wide = (float)x;
    uint32_t bits;
    memcpy(&bits, &wide, sizeof bits);
    return (double)tsr_f32_from_bf16((uint16_t)(bits >> 16));
}

static double rounded_down(double x)
{
    const double towards_zero = truncated(x);
    return x < 0 ? truncated(x * (1 + 0x1p-7)) : towards_zero;
}

static double a_thousandth_more(double x)
{
    return rounded(x * 1.001);
}

static double two_thousandths_less(double x)
{
    return rounded(x * 0.998);
}

typedef struct simulation {
    size_t rows, cols;
    int distinct_rows; /* the others repeat these; 0: all differ */
    double of_rows;    /* the RMS of an error that all results of a row share, of their values */
    double of_sum;     /* the RMS of a sum's own error, of its value */
    enum {
        NORMAL,
        FEW, /* integers from -8 to 8, by one scale */
        NEAR /* a number in BF16 times nearly 1, plus little of others, as of attention to one token */
    } values;
    wrong_fn *make;
} simulation;

static double value_of(const simulation *s)
{
    if (s->values == FEW)
        return 0.0123 * rint(8 * uniform());
    if (s->values == NORMAL)
        return normal();
    const double others = 0x1p-10 * fabs(uniform());
    return (1 - others) * rounded(normal()) + others * normal();
}

static tsr_judgement judge(const simulation *s, double *values)
{
    const tsr_kernel_limits limits = tsr_kernel_limits_defaults();
    const tsr_tally_of of = {.subject = "simulated",
                             .what = "results",
                             .rows = s->rows,
                             .cols = s->cols,
                             .out = TSR_OUT_BF16,
                             .shared = s->of_rows > 0 ? TSR_SHARE_ROWS : TSR_SHARE_NOTHING,
                             .systematic = 0x1p-12};
    tsr_evidence evidence = {0};
    tsr_kernel_tally t;
    tsr_err err;
    cr_assert_eq(tsr_kernel_tally_begin(&t, &of, &err), TSR_OK);
    for (size_t i = 0; i < s->rows; i++) {
        const double common = s->of_rows * normal();
        for (size_t j = 0; j < s->cols; j++) {
            const size_t from = s->distinct_rows > 0 ? i % (size_t)s->distinct_rows : i;
            if (from == i)
                values[i * s->cols + j] = value_of(s);
            const double x = values[from * s->cols + j], error = s->of_sum * x,
                         step = tsr_half_step(TSR_OUT_BF16, fabs(x));
            const double got = s->make(x * (1 + common) + (s->distinct_rows > 0 ? 0 : error * normal()));
            const double shared = s->of_rows * x;
            tsr_kernel_tally_count(&t, i, j, x, got, 8 * (step + fabs(shared) + fabs(error)),
                                   step * step / 3 + shared * shared + error * error);
        }
    }
    cr_assert_eq(tsr_kernel_tally_end(&t, &limits, "bound", "rms", &evidence, &err), TSR_OK);
    tsr_judgement found = evidence.items[0];
    static char fault[TSR_MAX_FAULT];
    if (found.fault != NULL) {
        snprintf(fault, sizeof fault, "%s", found.fault);
        found.fault = fault;
    }
    tsr_evidence_free(&evidence);
    return found;
}

static const simulation kSound[] = {
    {ROWS, COLS, 0, 0, 0, NORMAL, rounded},    {ROWS, COLS, 0, 0, 1e-3, NORMAL, rounded},
    {1, 256, 0, 0, 0, NORMAL, rounded},        {16, 128, 0, 0, 1e-4, NORMAL, rounded},
    {ROWS, COLS, 1, 0, 0, NORMAL, rounded},    {ROWS, COLS, 5, 0, 0, NORMAL, rounded},
    {ROWS, COLS, 0, 1e-3, 0, NORMAL, rounded}, {8, 128, 0, 1e-3, 0, NORMAL, rounded},
    {ROWS, COLS, 0, 0, 0, FEW, rounded},       {8, 8, 0, 0, 0, NORMAL, rounded},
    {ROWS, COLS, 0, 0, 0, NEAR, rounded},
};

/* A normal deviate exceeds 6 once in 5e8. None of these thousands may be near it. */
Test(kernel_tally, sound_results_pass_with_room_to_spare)
{
    static double values[ROWS * COLS];
    for (size_t i = 0; i < sizeof kSound / sizeof *kSound; i++) {
        double worst = 0, rms = 0;
        int beyond_two = 0;
        for (int run = 0; run < RUNS / 4; run++) {
            const tsr_judgement j = judge(&kSound[i], values);
            cr_assert_null(j.fault, "simulation %zu, run %d: %s", i, run, j.fault);
            cr_assert(j.bias.known);
            worst = fmax(worst, j.bias.sigmas);
            rms = fmax(rms, j.of_expected);
            beyond_two += j.bias.sigmas > 2;
        }
        cr_assert_lt(worst, 4.5, "simulation %zu: %g standard errors", i, worst);
        cr_assert_lt(beyond_two, RUNS / 4 / 8, "simulation %zu: %d of %d beyond 2", i, beyond_two, RUNS / 4);
        cr_assert_lt(rms, kSound[i].values == FEW ? 1.74 : 1.35, "simulation %zu: RMS %g", i, rms);
    }
}

Test(kernel_tally, a_lean_to_one_side_is_found)
{
    static double values[ROWS * COLS];
    static const struct {
        wrong_fn *make;
        double of_sum;
        size_t rows;
        const char *fault;
    } kWrong[] = {
        {truncated, 0, ROWS, "rms"},
        {truncated, 3e-3, ROWS, "its errors are biased"},
        {rounded_down, 5e-3, ROWS, "its errors are biased"},
        {a_thousandth_more, 0, ROWS, "its errors are biased"},
        {a_thousandth_more, 0, 16, "its errors are biased"},
        {two_thousandths_less, 1e-3, ROWS, "its errors are biased"},
    };
    for (size_t i = 0; i < sizeof kWrong / sizeof *kWrong; i++) {
        const simulation s = {kWrong[i].rows, COLS, 0, 0, kWrong[i].of_sum, NORMAL, kWrong[i].make};
        const tsr_judgement j = judge(&s, values);
        cr_assert_not_null(j.fault, "fault %zu: bias %g, %g standard errors, RMS %g", i, j.bias.slope, j.bias.sigmas,
                           j.of_expected);
        cr_assert(strncmp(j.fault, kWrong[i].fault, strlen(kWrong[i].fault)) == 0, "fault %zu: %s", i, j.fault);
    }
}

/* Results of attention share the rounding of probabilities along a row. A factor of 1.002 is found nevertheless. */
Test(kernel_tally, a_lean_is_found_beside_errors_of_whole_rows)
{
    static double values[ROWS * COLS];
    const simulation s = {ROWS, COLS, 0, 1e-3, 0, NORMAL, two_thousandths_less};
    const tsr_judgement j = judge(&s, values);
    cr_assert_not_null(j.fault, "%g standard errors", j.bias.sigmas);
    cr_assert_float_eq(j.bias.slope, -0.002, 6e-4);
}

/* Makes errors of variance 1 with the mean `offset`, for values of both signs. Returns the bias in standard errors. */
static double sigmas_of_offset(double offset)
{
    enum { SIDE = 256 };
    const tsr_kernel_limits limits = tsr_kernel_limits_defaults();
    const tsr_tally_of of = {.subject = "simulated", .what = "results", .rows = SIDE, .cols = SIDE, .out = TSR_OUT_F32};
    tsr_evidence evidence = {0};
    tsr_kernel_tally t;
    tsr_err err;
    cr_assert_eq(tsr_kernel_tally_begin(&t, &of, &err), TSR_OK);
    for (size_t i = 0; i < (size_t)SIDE * SIDE; i++) {
        const double x = 1000 * normal();
        tsr_kernel_tally_count(&t, i / SIDE, i % SIDE, x, x + offset + sqrt(1 - offset * offset) * normal(), 100, 1);
    }
    cr_assert_eq(tsr_kernel_tally_end(&t, &limits, "bound", "rms", &evidence, &err), TSR_OK);
    const double sigmas = evidence.items[0].bias.sigmas;
    tsr_evidence_free(&evidence);
    return sigmas;
}

/* A tenth of an expected error is allowed: with 65,536 results the standard error is 1/256 of one. */
Test(kernel_tally, an_offset_above_a_tenth_of_an_error_is_found)
{
    for (int sign = -1; sign <= 1; sign += 2) {
        cr_expect_lt(sigmas_of_offset(sign * 0.09), 4.5);
        cr_expect_gt(sigmas_of_offset(sign * 0.135), 6);
    }
}

/* If a result must be exact, any error exceeds its bound, and NaN exceeds any bound. */
Test(kernel_tally, an_error_where_none_can_be_is_found)
{
    const tsr_kernel_limits limits = tsr_kernel_limits_defaults();
    const tsr_tally_of of = {.subject = "exact", .what = "results", .out = TSR_OUT_F32};
    static const double kGot[] = {0, 0x1p-1074, NAN, INFINITY};
    for (size_t i = 0; i < sizeof kGot / sizeof *kGot; i++) {
        tsr_evidence evidence = {0};
        tsr_kernel_tally t;
        tsr_err err;
        cr_assert_eq(tsr_kernel_tally_begin(&t, &of, &err), TSR_OK);
        tsr_kernel_tally_count(&t, 0, 0, 0, kGot[i], 0, 0);
        cr_assert_eq(tsr_kernel_tally_end(&t, &limits, "bound", "rms", &evidence, &err), TSR_OK);
        cr_assert_eq(evidence.items[0].fault != NULL, i > 0, "result %zu, %g", i, kGot[i]);
        tsr_evidence_free(&evidence);
    }
}
