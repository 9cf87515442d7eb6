/* Tests decoding of int4 by columns: the scalar form against double, every form against the scalar one. */
#include "common/float_bits.h"
#include "tests/unit/kernels/cpu/instruction_sets.h"
#include "tests/unit/kernels/cpu/rounded.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { ROWS = 70, COLS = 210, GROUPS = 150, LD_WORDS = 75, LD_GROUPS = 80, LD = 220 };

typedef struct matrix {
    tsr_int4_columns x;
    uint32_t words[(COLS + 7) / 8 * LD_WORDS], group[COLS];
    float scale[GROUPS * LD_GROUPS], zero[GROUPS * LD_GROUPS], offset[GROUPS * LD_GROUPS];
} matrix;

/* Returns positive F16 and BF16: all of them, often those whose products are ties. */
static float exact_scale(void)
{
    const uint64_t r = random_bits();
    if (r % 4 == 0)
        return tsr_f32_from_bits((uint32_t)(r >> 32) % 0x7700u << 16 | 0x10000u); /* BF16 below 2^111 */
    if (r % 4 == 1)
        return ldexpf(1 + 2 * (float)(r >> 8 & 127), (int)(r >> 16 & 31) - 24);
    return tsr_f32_from_f16((uint16_t)(1 + (r >> 32) % 0x7BFF));
}

static void fill(matrix *m, size_t rows, size_t cols, size_t groups)
{
    for (size_t i = 0; i < sizeof m->words / sizeof *m->words; i++)
        m->words[i] = (uint32_t)random_bits();
    for (size_t c = 0; c < COLS; c++)
        m->group[c] = (uint32_t)(random_bits() % groups);
    for (size_t i = 0; i < GROUPS * LD_GROUPS; i++) {
        m->scale[i] = exact_scale();
        m->zero[i] = (float)(random_bits() % 17);
    }
    cr_assert(tsr_fold_zeros_ref(m->scale, m->zero, GROUPS * LD_GROUPS, m->offset));
    m->x = (tsr_int4_columns){.words = m->words,
                              .rows = rows,
                              .cols = cols,
                              .ld_words = LD_WORDS,
                              .group = m->group,
                              .scale = m->scale,
                              .offset = m->offset,
                              .ld_groups = LD_GROUPS};
}

static size_t any_of(const size_t *sizes, size_t n)
{
    return sizes[random_bits() % n];
}

static void fill_any(matrix *m)
{
    static const size_t kRows[] = {1, 15, 16, 17, 32, 63, 64, ROWS}, kCols[] = {1, 8, 31, 32, 33, 64, 100, 200, COLS};
    static const size_t kGroups[] = {1, 2, 32, 33, 128, 129, GROUPS};
    fill(m, any_of(kRows, 8), any_of(kCols, 9), any_of(kGroups, 7));
}

Test(int4_columns, folded_zeros_give_one_product_and_one_rounding)
{
    static matrix m;
    static uint16_t y[ROWS * LD];
    for (int trial = 0; trial < 40; trial++) {
        fill(&m, ROWS, COLS, GROUPS);
        tsr_decode_int4_columns_bf16_ref(&m.x, y, LD);
        for (size_t r = 0; r < ROWS; r++) {
            for (size_t c = 0; c < COLS; c++) {
                const size_t g = m.group[c] * LD_GROUPS + r;
                const float code = (float)(m.words[c / 8 * LD_WORDS + r] >> 4 * (c % 8) & 15);
                const float product = (code - m.zero[g]) * m.scale[g];
                cr_assert_eq((double)tsr_f32_from_bf16(y[r * LD + c]), rounded((double)product, 8, -126));
                cr_assert_eq(y[r * LD + c], tsr_bf16_from_f32(product), "%a, the sign of zero included",
                             (double)product);
            }
        }
    }
}

Test(int4_columns, every_form_gives_the_same_bits_and_writes_nothing_else)
{
    static matrix m;
    static uint16_t want[ROWS * LD], got[ROWS * LD];
    tsr_cpu_kernels k;
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (int trial = 0; trial < 300; trial++) {
            fill_any(&m);
            if (trial % 3 == 0) { /* no product is exact then, and some are negative throughout */
                for (size_t i = 0; i < GROUPS * LD_GROUPS; i++)
                    m.offset[i] *= 1 + (float)(random_bits() % 1000) * 1e-6f;
            }
            tsr_words_ahead ahead = {.at = m.words, .rows = trial % 5, .cols = m.x.rows, .ld = LD_WORDS};
            m.x.ahead = trial % 2 ? &ahead : NULL;
            memset(want, 0xA5, sizeof want);
            memset(got, 0xA5, sizeof got);
            tsr_decode_int4_columns_bf16_ref(&m.x, want, LD);
            k.decode_int4_columns_bf16(&m.x, got, LD);
            cr_assert_arr_eq(got, want, sizeof got, "set %d, %zu x %zu", s, m.x.rows, m.x.cols);
        }
    }
}

Test(int4_columns, every_form_folds_zeros_alike_and_finds_what_is_not_positive)
{
    static matrix m;
    static float got[GROUPS + 1];
    static const float kOthers[] = {0, -0.0f, -1, -0x1p-149f};
    tsr_cpu_kernels k;
    fill(&m, ROWS, COLS, GROUPS);
    for (int s = 0; s < SETS && take_set(s, &k); s++) {
        for (size_t n = 0; n <= GROUPS; n++) {
            got[n] = 1.25f;
            cr_assert(k.fold_zeros(m.scale, m.zero, n, got));
            cr_assert_arr_eq(got, m.offset, n * sizeof *got);
            cr_assert_eq(got[n], 1.25f);
            if (n == 0)
                continue;
            const size_t at = random_bits() % n;
            const float kept = m.scale[at];
            m.scale[at] = kOthers[n % 4];
            cr_assert_not(k.fold_zeros(m.scale, m.zero, n, got), "set %d, %zu of %zu", s, at, n);
            m.scale[at] = kept;
        }
    }
}
