/* Tests transposition: the scalar form for nibbles against one nibble at a time, every form against the scalar one. */
#include "tests/unit/kernels/cpu/instruction_sets.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

enum { MOST = 45, PITCH = 50, ALL = PITCH * PITCH };

static void fill(uint32_t *x)
{
    for (size_t i = 0; i < ALL; i++)
        x[i] = (uint32_t)random_bits();
}

Test(turn, a_nibble_changes_places_with_its_row)
{
    static uint32_t x[ALL], y[ALL];
    fill(x);
    tsr_transpose_nibbles_ref(x, 24, 5, PITCH, y);
    for (size_t row = 0; row < 24; row++) {
        for (size_t c = 0; c < 5; c++) {
            for (size_t k = 0; k < 8; k++)
                cr_assert_eq(y[row * 5 + c] >> 4 * k & 15, x[(row / 8 * 8 + k) * PITCH + c] >> 4 * (row % 8) & 15);
        }
    }
}

Test(turn, every_form_turns_alike)
{
    static uint32_t x[ALL], want[ALL], got[ALL];
    tsr_cpu_kernels k;
    fill(x);
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (size_t rows = 0; rows <= MOST; rows += 1 + rows / 20) {
            for (size_t cols = 0; cols <= MOST; cols += 1 + cols / 20) {
                memset(want, 0xA5, sizeof want);
                memset(got, 0xA5, sizeof got);
                tsr_transpose32_ref(x, rows, cols, PITCH, want, PITCH - 1);
                k.transpose32(x, rows, cols, PITCH, got, PITCH - 1);
                cr_assert_arr_eq(got, want, sizeof want, "set %d, %zu x %zu words", s, rows, cols);
                tsr_transpose16_ref((const uint16_t *)x, rows, cols, PITCH, (uint16_t *)want, PITCH - 1);
                k.transpose16((const uint16_t *)x, rows, cols, PITCH, (uint16_t *)got, PITCH - 1);
                cr_assert_arr_eq(got, want, sizeof want, "set %d, %zu x %zu half words", s, rows, cols);
                tsr_transpose_nibbles_ref(x, rows / 8 * 8, cols, PITCH, want);
                k.transpose_nibbles(x, rows / 8 * 8, cols, PITCH, got);
                cr_assert_arr_eq(got, want, sizeof want, "set %d, %zu x %zu words of nibbles", s, rows, cols);
            }
        }
    }
}
