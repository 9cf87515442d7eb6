/* Tests sums of outer products: the scalar form, and every form against it. */
#include "tests/unit/kernels/cpu/instruction_sets.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <string.h>

enum { TILE = TSR_OUTER_TILE, MOST = 37, LD = 11 };

static void fill(double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (double)(int64_t)random_bits() * 0x1p-62;
}

Test(outer_products, an_element_is_the_sum_in_order)
{
    double a[MOST * TILE], b[MOST * TILE], c[TILE * LD], before[TILE * LD];
    fill(a, MOST * TILE);
    fill(b, MOST * TILE);
    fill(c, TILE * LD);
    memcpy(before, c, sizeof c);
    tsr_outer_products_ref(a, b, MOST, c, LD);
    for (size_t i = 0; i < TILE; i++) {
        for (size_t j = 0; j < LD; j++) {
            volatile double sum = before[i * LD + j], product;
            for (size_t k = 0; k < MOST && j < TILE; k++) {
                product = a[k * TILE + i] * b[k * TILE + j];
                sum = sum + product;
            }
            cr_assert_eq(c[i * LD + j], sum, "row %zu, column %zu", i, j);
        }
    }
}

Test(outer_products, every_form_adds_alike)
{
    double a[MOST * TILE], b[MOST * TILE], want[TILE * LD], got[TILE * LD];
    tsr_cpu_kernels k;
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (size_t n = 0; n <= MOST; n++) {
            fill(a, MOST * TILE);
            fill(b, MOST * TILE);
            fill(want, TILE * LD);
            memcpy(got, want, sizeof got);
            tsr_outer_products_ref(a, b, n, want, LD);
            k.outer_products(a, b, n, got, LD);
            cr_assert_arr_eq(got, want, sizeof want, "set %d, %zu terms", s, n);
        }
    }
}
