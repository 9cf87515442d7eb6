/* Tests the factor of a Hessian against its definition, GPTQ against a plain form of it, and the cache of factors. */
#include "common/parallel/parallel_for.h"
#include "quantize/gptq/factor_cache.h"
#include "quantize/gptq/gptq.h"
#include "tests/unit/kernels/cpu/instruction_sets.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLS = 150, ROWS = 43, TOKENS = 400, GROUP = 32, GROUPS = (COLS + GROUP - 1) / GROUP, TILE = TSR_OUTER_TILE };

static tsr_err err;
static float h[COLS * COLS], w[ROWS * COLS], scale[ROWS * GROUPS];
static int8_t zero[ROWS * GROUPS];

static double draw(void)
{
    return (double)(int64_t)random_bits() * 0x1p-63;
}

/* Makes H from inputs whose channels have different sizes and depend on each other. */
static void make_hessian(void)
{
    static double x[TOKENS][COLS];
    for (size_t t = 0; t < TOKENS; t++) {
        double common = draw();
        for (size_t i = 0; i < COLS; i++)
            x[t][i] = (draw() + common) * (1 + (double)(i * 7 % 13));
    }
    for (size_t i = 0; i < COLS; i++) {
        for (size_t j = 0; j < COLS; j++) {
            double sum = 0;
            for (size_t t = 0; t < TOKENS; t++)
                sum += x[t][i] * x[t][j];
            h[i * COLS + j] = (float)(sum / TOKENS);
        }
    }
}

static void make_weights(bool zeros)
{
    for (size_t i = 0; i < ROWS * COLS; i++)
        w[i] = (float)(draw() + draw() * draw());
    for (size_t i = 0; i < ROWS * GROUPS; i++) {
        scale[i] = i % 17 == 0 ? 0 : (float)(0.1 + 0.1 * fabs(draw()));
        zero[i] = zeros ? (int8_t)(random_bits() % 7) - 3 : 0;
    }
}

static tsr_hessian_factor factor_of(const tsr_cpu_kernels *k, uint64_t threads)
{
    tsr_hessian_factor f;
    cr_assert_eq(tsr_hessian_factorize(&f, (const unsigned char *)h, COLS, "x", k, threads, &err), TSR_OK, "%s",
                 err.msg);
    return f;
}

/* Returns M_jk of positions j < k. */
static double ratio(const tsr_hessian_factor *f, size_t j, size_t k)
{
    return tsr_hessian_ratios(f, j / TILE)[(k - j / TILE * TILE) * TILE + j % TILE];
}

/* Returns the damped H at two columns. */
static double damped(const tsr_hessian_factor *f, size_t i, size_t j)
{
    double mean = 0;
    for (size_t c = 0; i == j && c < COLS; c++)
        mean += (double)h[c * COLS + c] / COLS;
    return (double)h[i * COLS + j] + (i == j ? f->damping * mean : 0);
}

Test(gptq, a_factor_gives_h_again)
{
    tsr_cpu_kernels k;
    make_hessian();
    for (int s = -1; s < SETS && take_set_or_reference(s, &k); s++) {
        tsr_hessian_factor f = factor_of(&k, 1 + (uint64_t)(s + 1));
        cr_assert_eq(f.damping, 0.01);
        for (size_t p = 0; p < COLS; p++) {
            cr_assert(p == 0 || h[f.order[p] * (COLS + 1)] >= h[f.order[p - 1] * (COLS + 1)]);
            for (size_t q = 0; q <= p; q++) {
                double sum = 0;
                for (size_t j = 0; j <= q; j++)
                    sum += f.pivots[j] * (j == p ? 1 : ratio(&f, j, p)) * (j == q ? 1 : ratio(&f, j, q));
                cr_assert_float_eq(sum, damped(&f, f.order[p], f.order[q]),
                                   1e-10 * fabs(damped(&f, f.order[p], f.order[p])), "set %d, [%zu, %zu]", s, p, q);
            }
        }
        tsr_hessian_factor_free(&f);
    }
}

Test(gptq, a_factor_has_the_same_bits_everywhere)
{
    tsr_cpu_kernels k, reference;
    tsr_cpu_kernels_init(&reference, 0);
    make_hessian();
    tsr_hessian_factor want = factor_of(&reference, 1);
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        tsr_hessian_factor got = factor_of(&k, 3);
        for (size_t j = 0; j < COLS; j++) {
            cr_assert_eq(got.pivots[j], want.pivots[j]);
            for (size_t p = j + 1; p < COLS; p++)
                cr_assert_eq(ratio(&got, j, p), ratio(&want, j, p));
        }
        tsr_hessian_factor_free(&got);
    }
    tsr_hessian_factor_free(&want);
}

Test(gptq, a_singular_matrix_gets_more_damping)
{
    tsr_cpu_kernels k;
    tsr_cpu_kernels_init(&k, 0);
    tsr_hessian_factor f;
    for (size_t i = 0; i < COLS; i++) {
        for (size_t j = 0; j < COLS; j++) /* an eigenvalue of -0.05 */
            h[i * COLS + j] = i == j ? 1 : i + j == 1 ? 1.05f : 0;
    }
    f = factor_of(&k, 1);
    cr_assert_float_eq(f.damping, 0.1, 1e-12);
    tsr_hessian_factor_free(&f);
    h[1] = h[COLS] = 100;
    cr_assert_eq(tsr_hessian_factorize(&f, (const unsigned char *)h, COLS, "m.input", &k, 1, &err), TSR_E_VALUE);
    cr_assert(strstr(err.msg, "'m.input.input_products' is not a mean of x x^T") != NULL, "%s", err.msg);
    h[1] = 0;
    cr_assert_eq(tsr_hessian_factorize(&f, (const unsigned char *)h, COLS, "m.input", &k, 2, &err), TSR_E_VALUE);
    cr_assert(strstr(err.msg, "not symmetric") != NULL, "%s", err.msg);
    h[COLS + 1] = NAN;
    cr_assert_eq(tsr_hessian_factorize(&f, (const unsigned char *)h, COLS, "m.input", &k, 1, &err), TSR_E_VALUE);
    memset(h, 0, sizeof h);
    cr_assert_eq(tsr_hessian_factorize(&f, (const unsigned char *)h, COLS, "m.input", &k, 1, &err), TSR_E_VALUE);
}

/* ---- codes ---- */

static const double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

static double value_at(bool e2m1, size_t row, size_t col, int8_t code)
{
    const size_t at = row * GROUPS + col / GROUP;
    return (e2m1 ? kE2m1[code] : code - zero[at]) * (double)scale[at];
}

/* Returns the code of the nearest value, of two the even one. */
static int8_t nearest(bool e2m1, size_t row, size_t col, double x)
{
    int8_t best = 0;
    double least = INFINITY;
    if (scale[row * GROUPS + col / GROUP] == 0)
        return e2m1 ? 0 : zero[row * GROUPS + col / GROUP];
    for (int code = e2m1 ? 0 : -8; code < (e2m1 ? 16 : 8); code++) {
        const double distance = fabs(x - value_at(e2m1, row, col, (int8_t)code));
        if (distance < least && code != 8) {
            best = (int8_t)code;
            least = distance;
        }
    }
    return best;
}

/* Returns e^T H e of a row. */
static double output_error(const tsr_hessian_factor *f, bool e2m1, size_t row, const int8_t *codes)
{
    double sum = 0;
    for (size_t i = 0; i < COLS; i++) {
        for (size_t j = 0; j < COLS; j++)
            sum += ((double)w[row * COLS + i] - value_at(e2m1, row, i, codes[row * COLS + i])) * damped(f, i, j) *
                   ((double)w[row * COLS + j] - value_at(e2m1, row, j, codes[row * COLS + j]));
    }
    return sum;
}

/* Rounds a row as gptq.h describes, position by position. */
static void plain(const tsr_hessian_factor *f, bool e2m1, size_t row, int8_t *codes)
{
    double e[COLS];
    for (size_t p = COLS; p-- > 0;) {
        const size_t col = f->order[p];
        double center = (double)w[row * COLS + col];
        for (size_t k = p + 1; k < COLS; k++)
            center += ratio(f, p, k) * e[k];
        codes[row * COLS + col] = nearest(e2m1, row, col, center);
        e[p] = (double)w[row * COLS + col] - value_at(e2m1, row, col, codes[row * COLS + col]);
    }
}

static void check_codes(const tsr_cpu_kernels *k, bool e2m1)
{
    static int8_t before[ROWS * COLS], want[ROWS * COLS], got[ROWS * COLS];
    tsr_hessian_factor f = factor_of(k, 2);
    tsr_gptq_errors errors = {0, 0};
    double least = 0, first = 0;
    for (size_t i = 0; i < ROWS * COLS; i++)
        before[i] = got[i] = nearest(e2m1, i / COLS, i % COLS, (double)w[i]);
    void *const scratch = malloc(tsr_gptq_scratch(COLS));
    tsr_gptq_round(&f, k,
                   &(tsr_gptq_rows){.rows = ROWS,
                                    .group = GROUP,
                                    .dtype = TSR_F32,
                                    .x = w,
                                    .scale = scale,
                                    .zero = e2m1 ? NULL : zero,
                                    .e2m1 = e2m1,
                                    .low = -8,
                                    .high = 7,
                                    .codes = got,
                                    .scratch = scratch},
                   &errors);
    for (size_t i = 0; e2m1 && i < ROWS * COLS; i++)
        got[i] = got[i] == 8 ? 0 : got[i]; /* -0 */
    for (size_t row = 0; row < ROWS; row++) {
        plain(&f, e2m1, row, want);
        const double of_nearest = output_error(&f, e2m1, row, before), of_plain = output_error(&f, e2m1, row, want);
        if (of_plain >= of_nearest)
            memcpy(want + row * COLS, before + row * COLS, COLS);
        cr_assert_arr_eq(got + row * COLS, want + row * COLS, COLS, "row %zu", row);
        least += fmin(of_plain, of_nearest);
        first += of_nearest;
    }
    cr_assert_float_eq(errors.chosen, least, 1e-5 * least);
    cr_assert_float_eq(errors.nearest, first, 1e-5 * first);
    cr_assert_lt(least, 0.5 * first);
    free(scratch);
    tsr_hessian_factor_free(&f);
}

Test(gptq, codes_are_those_of_the_plain_form)
{
    tsr_cpu_kernels k;
    for (int s = -1; s < SETS && take_set_or_reference(s, &k); s++) {
        make_hessian();
        make_weights(true);
        check_codes(&k, false);
        make_weights(false);
        check_codes(&k, true);
    }
}

/* ---- the cache ---- */

enum { MATRICES = 5, USERS = 400 };

static unsigned char several[MATRICES][COLS * COLS * sizeof(float)];

typedef struct using
{
    tsr_factor_cache *cache;
    tsr_cpu_kernels kernels;
    double pivots[MATRICES];
    _Atomic int wrong;
}
using;

static tsr_status use(void *context, size_t i, size_t worker, tsr_err *e)
{
    using *const u = context;
    const tsr_hessian_factor *f;
    const size_t m = i * 7 / 3 % MATRICES;
    (void)worker;
    TSR_TRY(tsr_factor_cache_take(u->cache, several[m], COLS, "x", &u->kernels, &f, e));
    u->wrong += f->pivots[COLS - 1] != u->pivots[m];
    tsr_factor_cache_release(u->cache, f);
    return TSR_OK;
}

Test(gptq, threads_share_the_factors_of_a_cache)
{
    using u = {.cache = tsr_factor_cache_new()};
    tsr_cpu_kernels_init(&u.kernels, tsr_cpu_flags());
    for (size_t m = 0; m < MATRICES; m++) {
        make_hessian();
        memcpy(several[m], h, sizeof h);
        tsr_hessian_factor f = factor_of(&u.kernels, 1);
        u.pivots[m] = f.pivots[COLS - 1];
        tsr_hessian_factor_free(&f);
    }
    cr_assert_neq(u.pivots[0], u.pivots[1]);
    cr_assert_eq(tsr_parallel_for(USERS, 8, NULL, use, &u, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(u.wrong, 0);
    memset(several[0], 0, sizeof several[0]);
    tsr_factor_cache_free(u.cache);
    u.cache = tsr_factor_cache_new(); /* a failure is reported to each that needs the factor */
    cr_assert_eq(tsr_parallel_for(4, 4, NULL, use, &u, &err), TSR_E_VALUE);
    tsr_factor_cache_free(u.cache);
}
