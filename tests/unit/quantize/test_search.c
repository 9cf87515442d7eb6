/* Tests the search for scales: the error is at most that of the formula, and every scale is valid for readers. */
#include "common/float_bits.h"
#include "quantize/fp8_block.h"
#include "quantize/int_weight.h"
#include "quantize/scales/stored_scale.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

enum { ROWS = 32, COLS = 256, GROUP = 32, TRIALS = 40 };

static tsr_cpu_kernels kernels;

static void begin(void)
{
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
}

/* Makes a weight that is sometimes normal and sometimes has long tails, for which clipping reduces the error. */
static float random_weight(float size, bool tails)
{
    double x = 0;
    for (int i = 0; i < 6; i++)
        x += (double)(random_bits() >> 11) * 0x1p-53 - 0.5;
    return size * (float)(tails ? x * x * x : x);
}

static double squared(double x)
{
    return x * x;
}

/* Returns the squared error of the block of GROUP columns from `col` on. */
static double fp8_error(const float *x, const uint8_t *codes, const float *scales, size_t col)
{
    double sum = 0;
    for (size_t row = 0; row < ROWS; row++) {
        for (size_t c = col; c < col + GROUP; c++)
            sum += squared((double)x[row * COLS + c] -
                           (double)tsr_e4m3_to_f32(codes[row * COLS + c]) * (double)scales[col / GROUP]);
    }
    return sum;
}

static void quantize_fp8(const float *x, bool search, tsr_scale_fmt fmt, uint8_t *codes, float *scales)
{
    static const tsr_tensor tensor = {.name = "w", .dtype = TSR_F32, .rank = 2, .shape = {ROWS, COLS}};
    const tsr_fp8_block scheme = {.block_rows = ROWS, .block_cols = GROUP, .scale_fmt = fmt, .search = search};
    tsr_fp8_band band = {.tensor = &tensor, .x = x, .rows = ROWS, .cols = COLS, .ld = COLS, .ld_codes = COLS};
    band.codes = codes;
    band.scales = scales;
    tsr_quant_stats stats = {0};
    tsr_err err = {0};
    cr_assert_eq(tsr_fp8_block_quantize(&scheme, &kernels, &band, &stats, &err), TSR_OK, "%s", err.msg);
}

Test(search, no_block_of_fp8_gets_worse, .init = begin)
{
    static float x[ROWS * COLS], plain[COLS / GROUP], best[COLS / GROUP];
    static uint8_t plain_codes[ROWS * COLS], best_codes[ROWS * COLS];
    static const tsr_scale_fmt kFormats[] = {TSR_SCALE_F32, TSR_SCALE_UE8M0, TSR_SCALE_BF16};
    double gained = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        const tsr_scale_fmt fmt = kFormats[trial % 3];
        for (size_t i = 0; i < ROWS * COLS; i++)
            x[i] = random_weight(1, trial % 2 != 0);
        quantize_fp8(x, false, fmt, plain_codes, plain);
        quantize_fp8(x, true, fmt, best_codes, best);
        for (size_t col = 0; col < COLS; col += GROUP) {
            const double before = fp8_error(x, plain_codes, plain, col), after = fp8_error(x, best_codes, best, col);
            cr_assert_leq(after, before, "trial %d, column %zu: %.17g, and %.17g by amax", trial, col, after, before);
            gained += before - after;
        }
    }
    cr_assert_gt(gained, 0);
}

/* Tests values next to FP32's smallest normal number, for which a smaller scale would be much better, but some GPUs
 * read it as 0. */
Test(search, no_scale_of_fp8_becomes_subnormal, .init = begin)
{
    static float x[ROWS * COLS], scales[COLS / GROUP];
    static uint8_t codes[ROWS * COLS];
    const float by_amax = 0x1.05p-126f, better = 0.957603281f * by_amax;
    cr_assert_lt(better, 0x1p-126f);
    for (size_t i = 0; i < ROWS * COLS; i++)
        x[i] = i < COLS && i % GROUP == 0 ? 448 * by_amax : tsr_e4m3_to_f32((uint8_t)(random_bits() % 0x7C)) * better;
    quantize_fp8(x, true, TSR_SCALE_F32, codes, scales);
    for (size_t b = 0; b < COLS / GROUP; b++)
        cr_assert_geq(scales[b], 0x1p-126f, "block %zu: %a", b, (double)scales[b]);
}

static double int_error(const float *x, const int8_t *codes, const float *scales, const int8_t *zeros, size_t at)
{
    double sum = 0;
    for (size_t i = at; i < at + GROUP; i++)
        sum += squared((double)x[i] -
                       (double)(codes[i] - (zeros == NULL ? 0 : zeros[at / GROUP])) * (double)scales[at / GROUP]);
    return sum;
}

Test(search, no_group_of_integers_gets_worse, .init = begin)
{
    static const tsr_tensor tensor = {.name = "w", .dtype = TSR_F32, .rank = 2, .shape = {ROWS, COLS}};
    static float x[ROWS * COLS], scales[2][ROWS * COLS / GROUP];
    static int8_t codes[2][ROWS * COLS], zeros[2][ROWS * COLS / GROUP];
    double gained = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        const bool asymmetric = trial % 4 > 1;
        for (size_t i = 0; i < ROWS * COLS; i++)
            x[i] = random_weight(1, trial % 2 != 0);
        for (int search = 0; search < 2; search++) {
            const tsr_int_scheme scheme = {.bits = trial % 8 > 3 ? 8 : 4,
                                           .group = GROUP,
                                           .asymmetric = asymmetric,
                                           .divisor = trial % 8 > 3 ? 127.5f : 7.5f,
                                           .scale_dtype = TSR_F32,
                                           .search = search != 0};
            void *const scratch = malloc(tsr_int_scratch(&scheme, COLS));
            const tsr_int_rows rows = {.tensor = &tensor,
                                       .rows = ROWS,
                                       .x = x,
                                       .codes = codes[search],
                                       .scales = scales[search],
                                       .zero_points = asymmetric ? zeros[search] : NULL,
                                       .scratch = scratch};
            tsr_err err = {0};
            cr_assert_not_null(scratch);
            cr_assert_eq(tsr_int_quantize(&scheme, &kernels, &rows, NULL, &err), TSR_OK, "%s", err.msg);
            free(scratch);
        }
        for (size_t at = 0; at < ROWS * COLS; at += GROUP) {
            const double before = int_error(x, codes[0], scales[0], asymmetric ? zeros[0] : NULL, at),
                         after = int_error(x, codes[1], scales[1], asymmetric ? zeros[1] : NULL, at);
            cr_assert_leq(after, before, "trial %d, element %zu: %.17g, and %.17g by amax", trial, at, after, before);
            gained += before - after;
        }
    }
    cr_assert_gt(gained, 0);
}

Test(search, a_stored_scale_is_positive, .init = begin)
{
    cr_assert_eq(tsr_stored_scale(TSR_F16, 0x1p-30f, &kernels), 0x1p-24f);
    cr_assert_eq(tsr_stored_scale(TSR_BF16, 0x1p-140f, &kernels), 0x1p-133f);
    cr_assert_eq(tsr_stored_scale(TSR_F32, 0x1p-149f, &kernels), 0x1p-149f);
    cr_assert_eq(tsr_stored_scale(TSR_F16, 1 + 0x1p-11f, &kernels), 1, "ties to even");
    cr_assert_eq(tsr_stored_scale(TSR_BF16, 1 + 0x3p-8f, &kernels), 1 + 0x1p-6f, "ties to even");
    cr_assert(isinf(tsr_stored_scale(TSR_F16, 70000, &kernels)));
}
