/* Tests decoding of MXFP6: all codes under all scales, in each place of a word, and what is refused. */
#include "quantize/fp6_decode.h"

#include "tests/unit/kernels/cpu/instruction_sets.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { COLS = 64, GROUP = 32 };

static const tsr_tensor kTensor = {.name = "x"};

/* Returns the value by the formula of the specification. */
static float value_of(unsigned code, bool e3m2)
{
    const unsigned mantissa = e3m2 ? 2 : 3, field = (code & 31) >> mantissa;
    const int bias = e3m2 ? 3 : 1, fraction = (int)(code & ((1u << mantissa) - 1));
    const float magnitude = field == 0 ? ldexpf((float)fraction, 1 - bias - (int)mantissa)
                                       : ldexpf((float)(fraction + (1 << mantissa)), (int)field - bias - (int)mantissa);
    return (code & 32) != 0 ? -magnitude : magnitude;
}

/* Packs bit by bit: bit b of code i is bit 6 * i + b of the row. */
static void pack(const unsigned codes[COLS], uint8_t row[COLS / 4 * 3])
{
    memset(row, 0, COLS / 4 * 3);
    for (unsigned i = 0; i < COLS; i++) {
        for (unsigned b = 0; b < 6; b++)
            row[(6 * i + b) / 8] |= (uint8_t)((codes[i] >> b & 1) << (6 * i + b) % 8);
    }
}

static tsr_mx_span span_of(const uint8_t *codes, const uint8_t *scales)
{
    return (tsr_mx_span){.codes_of = &kTensor,
                         .scales_of = &kTensor,
                         .rows = 1,
                         .cols = COLS,
                         .group = GROUP,
                         .scale = TSR_MX_E8M0,
                         .codes = codes,
                         .scales = scales};
}

/* Decodes all codes, beginning at `first`, under one scale to FP32. */
static void check_scale(const tsr_cpu_kernels *k, unsigned first, uint8_t scale, bool e3m2)
{
    unsigned codes[COLS];
    uint8_t row[COLS / 4 * 3], scratch[4096];
    const uint8_t scales[2] = {scale, scale};
    float out[COLS];
    for (unsigned i = 0; i < COLS; i++)
        codes[i] = (i + first) % 64;
    pack(codes, row);
    const tsr_mx_span span = span_of(row, scales);
    cr_assert_leq(tsr_fp6_decode_scratch(COLS), sizeof scratch);
    cr_assert_eq(tsr_fp6_decode(k, &span, e3m2, TSR_F32, out, scratch, NULL), TSR_OK);
    for (unsigned i = 0; i < COLS; i++) {
        const float wanted = value_of(codes[i], e3m2) * ldexpf(1, scale - 127);
        cr_assert_eq(memcmp(&out[i], &wanted, sizeof wanted), 0, "code %u, scale %u: %a, not %a", codes[i], scale,
                     (double)out[i], (double)wanted);
    }
}

Test(fp6_decode, all_codes_and_scales)
{
    for (int set = -1; set < SETS; set++) {
        tsr_cpu_kernels kernels;
        if (!take_set_or_reference(set, &kernels))
            continue;
        for (unsigned scale = 0; scale < 250; scale++) {
            for (unsigned first = 0; first < 4; first++) {
                check_scale(&kernels, first, (uint8_t)scale, false);
                check_scale(&kernels, first, (uint8_t)scale, true);
            }
        }
    }
}

Test(fp6_decode, refusals_have_the_place)
{
    static const struct {
        uint8_t code, scale;
        tsr_status status;
        const char *words;
    } kCases[] = {{0x1F, 255, TSR_E_VALUE, "the scale at [3, 1], file offset 107, is NaN"},
                  {0x1F, 254, TSR_E_VALUE, "the value at [3, 32] is beyond the range of BF16"},
                  {0x10, 254, TSR_E_VALUE, "the value at [3, 32] is beyond the range of BF16"},
                  {0x0F, 254, TSR_OK, ""}};
    const tsr_tensor tensor = {.name = "x", .offset = 100};
    tsr_cpu_kernels kernels;
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        unsigned codes[COLS] = {[32] = kCases[i].code};
        uint8_t row[2 * COLS / 4 * 3] = {0}, scratch[4096];
        const uint8_t scales[4] = {0, 0, 0, kCases[i].scale};
        uint16_t out[2 * COLS];
        tsr_err err = {0};
        tsr_mx_span span = span_of(row, scales);
        pack(codes, row + COLS / 4 * 3);
        span.row = 2;
        span.rows = 2;
        span.scales_of = &tensor;
        cr_assert_eq(tsr_fp6_decode(&kernels, &span, i == 0, TSR_BF16, out, scratch, &err), kCases[i].status, "%zu", i);
        cr_assert_not_null(strstr(err.msg, kCases[i].words), "%zu: %s", i, err.msg);
    }
}

Test(fp6_decode, rows_that_are_no_words)
{
    uint8_t row[64] = {0}, scales[4] = {0}, scratch[4096];
    float out[COLS];
    tsr_err err = {0};
    tsr_cpu_kernels kernels;
    tsr_mx_span span = span_of(row, scales);
    tsr_cpu_kernels_init(&kernels, 0);
    span.cols = 34;
    span.group = 34;
    cr_assert_eq(tsr_fp6_decode(&kernels, &span, false, TSR_F32, out, scratch, &err), TSR_E_SHAPE);
    cr_assert_not_null(strstr(err.msg, "'x': its rows are not whole words"), "%s", err.msg);
}
