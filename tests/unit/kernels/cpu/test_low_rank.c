/* Tests the product of thin matrices and the sums over updates: the scalar forms, and every form against them. */
#include "tests/unit/kernels/cpu/instruction_sets.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { ROWS = 21, COLS = 70, RANK = 19, TILES = 3, LONG = 1300 };

/* Returns a number between -2 and 2 with a full mantissa. */
static float draw(void)
{
    return (float)(int32_t)random_bits() * 0x1p-30f;
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_bits() % 16 == 0 ? 0 : draw();
}

Test(low_rank, an_element_is_the_sum_in_order)
{
    static float left[ROWS * RANK], right[TILES * RANK * TSR_LOW_RANK_TILE], out[ROWS * COLS];
    fill(left, ROWS * RANK);
    fill(right, TILES * RANK * TSR_LOW_RANK_TILE);
    tsr_low_rank_ref(left, right, ROWS, COLS, RANK, 0.3f, out);
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t c = 0; c < COLS; c++) {
            volatile float sum = 0, product;
            for (size_t i = 0; i < RANK; i++) {
                product = left[r * RANK + i] * right[(c / 32 * RANK + i) * 32 + c % 32];
                sum = sum + product;
            }
            product = sum * 0.3f;
            cr_assert_eq(out[r * COLS + c], product, "row %zu, column %zu", r, c);
        }
    }
}

Test(low_rank, every_form_multiplies_alike)
{
    static float left[ROWS * RANK], right[TILES * RANK * TSR_LOW_RANK_TILE], want[ROWS * COLS], got[ROWS * COLS];
    tsr_cpu_kernels k;
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (size_t rows = 1; rows <= ROWS; rows++) {
            for (size_t cols = 1; cols <= COLS; cols += 3) {
                const size_t rank = 1 + (rows + cols) % RANK;
                fill(left, ROWS * RANK);
                fill(right, TILES * RANK * TSR_LOW_RANK_TILE);
                memset(want, 0xA5, sizeof want);
                memset(got, 0xA5, sizeof got);
                tsr_low_rank_ref(left, right, rows, cols, rank, -1.7f, want);
                k.low_rank(left, right, rows, cols, rank, -1.7f, got);
                cr_assert_arr_eq(got, want, sizeof want, "set %d, %zu x %zu, rank %zu", s, rows, cols, rank);
            }
        }
    }
}

Test(low_rank, sums_are_those_of_eight_lanes)
{
    static float before[LONG], update[LONG], after[LONG];
    double lanes[4][8] = {{0}};
    tsr_update_sums sums = {.x2 = 1, .amax = 0.5f};
    fill(before, LONG);
    fill(update, LONG);
    for (size_t i = 0; i < LONG; i++) {
        after[i] = i % 3 == 0 ? before[i] : before[i] + update[i] * 0.5f;
        const double x = (double)update[i], y = (double)after[i] - (double)before[i];
        const double terms[] = {x * x, (x - y) * (x - y), x * y, y * y};
        for (size_t t = 0; t < 4; t++)
            lanes[t][i % 8] += terms[t];
    }
    tsr_update_sums_ref(before, update, after, LONG, &sums);
    double want[4] = {1, 0, 0, 0};
    for (size_t l = 0; l < 8; l++) {
        for (size_t t = 0; t < 4; t++)
            want[t] += lanes[t][l];
    }
    cr_assert_eq(sums.x2, want[0]);
    cr_assert_eq(sums.d2, want[1]);
    cr_assert_eq(sums.xy, want[2]);
    cr_assert_eq(sums.y2, want[3]);
    uint64_t nonzero = 0, lost = 0;
    float amax = 0.5f;
    for (size_t i = 0; i < LONG; i++) {
        nonzero += update[i] != 0;
        lost += update[i] != 0 && after[i] == before[i];
        amax = fmaxf(amax, fabsf(update[i]));
    }
    cr_assert_eq(sums.nonzero, nonzero);
    cr_assert_eq(sums.lost, lost);
    cr_assert_eq(sums.amax, amax);
}

Test(low_rank, every_form_sums_alike)
{
    static float before[LONG], update[LONG], after[LONG];
    tsr_cpu_kernels k;
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (size_t n = 0; n <= LONG; n += 1 + n / 16) {
            tsr_update_sums want, got;
            fill(before, LONG);
            fill(update, LONG);
            fill(after, LONG);
            memset(&want, 0, sizeof want);
            memset(&got, 0, sizeof got);
            tsr_update_sums_ref(before, update, after, n, &want);
            k.update_sums(before, update, after, n, &got);
            cr_assert_arr_eq(&got, &want, sizeof want, "set %d, %zu elements", s, n);
        }
    }
}
