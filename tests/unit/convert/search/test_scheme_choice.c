/* Tests the knapsack solver of plan-schemes against all choices, and large problems against the bound of the solver. */
#include "convert/search/scheme_choice.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

enum { GROUPS = 8, OPTIONS = 4, MANY = 600 };

static uint64_t seed;

static uint64_t draw(uint64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

static tsr_choice_option options[MANY][OPTIONS];
static tsr_choice_group groups[MANY];

/* Makes options. Larger ones mostly have smaller errors, but some are dominated and some are not on the hull. `alike`:
 * few sizes, as in a model's layers. */
static void make(size_t n, bool alike)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t size = alike ? 1000 * (1 + draw(3)) : 1 + draw(5000);
        groups[i] = (tsr_choice_group){options[i], 1 + draw(OPTIONS)};
        for (size_t k = 0; k < groups[i].n; k++)
            options[i][k] = (tsr_choice_option){size * (k + 2) + draw(size),
                                                draw(10) == 0 ? 0 : (double)draw(100000) / pow(8, (double)k)};
    }
}

/* Returns the smallest error of groups [i, n) within the budget; infinity: nothing fits. */
static double all_choices(size_t i, size_t n, uint64_t budget)
{
    double best = i == n ? 0 : INFINITY;
    for (size_t k = 0; i < n && k < groups[i].n; k++) {
        if (options[i][k].bytes <= budget)
            best = fmin(best, options[i][k].error + all_choices(i + 1, n, budget - options[i][k].bytes));
    }
    return best;
}

static uint64_t least_of(size_t n, uint64_t *most)
{
    uint64_t sum = 0;
    *most = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t least = UINT64_MAX, largest = 0;
        for (size_t k = 0; k < groups[i].n; k++) {
            least = options[i][k].bytes < least ? options[i][k].bytes : least;
            largest = options[i][k].bytes > largest ? options[i][k].bytes : largest;
        }
        sum += least;
        *most += largest;
    }
    return sum;
}

/* Solves, and checks the result against the chosen options. */
static tsr_choice solve(size_t n, uint64_t budget)
{
    static size_t picked[MANY];
    tsr_err err;
    tsr_choice c;
    double error = 0;
    uint64_t bytes = 0;
    cr_assert_eq(tsr_scheme_choice(groups, n, budget, picked, &c, &err), TSR_OK, "%s", err.msg);
    for (size_t i = 0; i < n && c.fits; i++) {
        cr_assert_lt(picked[i], groups[i].n);
        bytes += options[i][picked[i]].bytes;
        error += options[i][picked[i]].error;
    }
    cr_assert_eq(bytes, c.bytes);
    cr_assert_leq(bytes, budget);
    cr_assert_float_eq(error, c.error, 1e-9 * (1 + error));
    cr_assert_leq(c.bound, c.error);
    return c;
}

Test(scheme_choice, finds_what_trying_all_choices_finds)
{
    for (uint64_t instance = 1; instance <= 800; instance++) {
        seed = instance;
        make(GROUPS, instance % 2 == 0);
        uint64_t most;
        const uint64_t least = least_of(GROUPS, &most), budget = least + draw(most - least + 1);
        const tsr_choice c = solve(GROUPS, budget);
        const double exact = all_choices(0, GROUPS, budget);
        cr_assert(c.fits);
        cr_assert_eq(c.least, least);
        cr_assert_float_eq(c.error, exact, 1e-9 * (1 + exact), "instance %llu: %g, exact %g", U64(instance), c.error,
                           exact);
        cr_assert_float_eq(c.bound, exact, 1e-9 * (1 + exact), "so few choices are never given up");
    }
}

Test(scheme_choice, says_the_least_that_there_is)
{
    seed = 5;
    make(GROUPS, false);
    uint64_t most;
    const uint64_t least = least_of(GROUPS, &most);
    const tsr_choice under = solve(GROUPS, least - 1), at = solve(GROUPS, least), none = solve(0, 0);
    cr_assert(!under.fits && at.fits && none.fits);
    cr_assert_eq(under.least, least);
    cr_assert_eq(at.bytes, least);
}

Test(scheme_choice, stays_close_to_the_bound_of_a_large_model)
{
    for (uint64_t instance = 1; instance <= 10; instance++) {
        seed = 1000 + instance;
        make(MANY, instance % 2 == 0);
        uint64_t most;
        const uint64_t least = least_of(MANY, &most);
        const tsr_choice c = solve(MANY, least + (most - least) / 11 * instance);
        cr_assert(c.fits);
        cr_assert_leq(c.error - c.bound, 0.01 * c.error, "instance %llu: %g, bound %g", U64(instance), c.error,
                      c.bound);
    }
}
