/* Tests the metrics of a comparison against sums computed by hand. */
#include "verify/compare/metrics.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

static tsr_metrics one_tile(const double *x, const double *y, uint32_t rows, uint32_t cols)
{
    tsr_metrics m = {0};
    tsr_tile tile;
    const tsr_tile_metrics place = {.rows = rows, .cols = cols};
    tsr_tile_begin(&tile, &place, rows, cols);
    for (uint32_t row = 0; row < rows; row++)
        tsr_tile_row(&tile, row, x + row * cols, y + row * cols);
    tsr_tile_end(&tile, &m);
    return m;
}

Test(metrics, a_case_known_by_hand)
{
    const double x[] = {3, 0, 0, 4, 0, 0}, y[] = {3, 0, 0, 3, 0, -0.0};
    const tsr_metrics m = one_tile(x, y, 2, 3);
    cr_expect_eq(m.elements, 6);
    cr_expect_eq(m.differ, 1);
    cr_expect_eq(m.max_abs, 1);
    cr_expect_eq(m.max_abs_at, 3);
    cr_expect_eq(tsr_metrics_relative(&m), 0.2);
    cr_expect_float_eq(tsr_metrics_sqnr(&m), 13.979400086720377, 1e-12);
    cr_expect_float_eq(tsr_metrics_cosine(&m), 21 / (5 * sqrt(18)), 1e-15);
    cr_expect_float_eq(tsr_metrics_calc_diff(&m), 1 - 2 * 21.0 / (25 + 18), 1e-15);
    cr_expect_eq(m.n_worst, 1);
    cr_expect_eq(m.worst[0].differ, 1);
}

Test(metrics, zeros_and_equals)
{
    const double zero[] = {0, 0}, one[] = {1, 0};
    tsr_metrics m = one_tile(zero, zero, 1, 2);
    cr_expect_eq(tsr_metrics_relative(&m), 0);
    cr_expect_eq(tsr_metrics_sqnr(&m), INFINITY);
    cr_expect_eq(tsr_metrics_cosine(&m), 1);
    cr_expect_eq(tsr_metrics_calc_diff(&m), 0);
    cr_expect_eq(m.n_worst, 0);
    m = one_tile(zero, one, 1, 2);
    cr_expect_eq(tsr_metrics_relative(&m), INFINITY);
    cr_expect_eq(tsr_metrics_sqnr(&m), -INFINITY);
    cr_expect_eq(tsr_metrics_cosine(&m), 0);
    cr_expect_eq(tsr_metrics_calc_diff(&m), 1);
    m = one_tile(one, zero, 1, 2);
    cr_expect_eq(tsr_metrics_relative(&m), 1);
}

Test(metrics, nan_is_counted_located_and_kept_out_of_the_sums)
{
    double x[40], y[40];
    for (size_t i = 0; i < 40; i++)
        x[i] = y[i] = (double)i;
    x[21] = y[21] = NAN;
    x[22] = y[22] = -INFINITY;
    tsr_metrics m = one_tile(x, y, 2, 20);
    cr_expect_eq(m.differ, 0);
    cr_expect_eq(m.nonfinite[0], 2);
    cr_expect_eq(m.nonfinite_at[1], 21);
    cr_expect_eq(tsr_metrics_relative(&m), 0);
    y[33] = NAN;
    y[5] = 6;
    m = one_tile(x, y, 2, 20);
    cr_expect_eq(m.differ, 2);
    cr_expect_eq(m.nonfinite[0], 2);
    cr_expect_eq(m.nonfinite[1], 3);
    cr_expect_eq(m.max_abs, INFINITY);
    cr_expect_eq(m.max_abs_at, 33);
    cr_expect_eq(m.sum_d2, 1);
    cr_expect_eq(tsr_metrics_relative(&m), INFINITY);
    cr_expect_eq(tsr_metrics_calc_diff(&m), INFINITY);
}

Test(metrics, keeps_the_worst_tiles_in_order)
{
    static const double kErrors[] = {0.5, 0.25, 0.75, 0, 0.5, 0.125, 1};
    tsr_metrics total = {0};
    for (size_t i = 0; i < sizeof kErrors / sizeof *kErrors; i++) {
        const double x = 1, y = 1 - kErrors[i];
        const tsr_tile_metrics place = {.row = i, .rows = 1, .cols = 1};
        tsr_tile tile;
        tsr_tile_begin(&tile, &place, 7, 1);
        tsr_tile_row(&tile, 0, &x, &y);
        tsr_tile_end(&tile, &total);
    }
    static const uint64_t kRows[] = {6, 2, 0, 4, 1};
    cr_expect_eq(total.n_worst, 5);
    for (size_t i = 0; i < 5; i++)
        cr_expect_eq(total.worst[i].row, kRows[i]);
    cr_expect_eq(total.max_abs_at, 6);
}
