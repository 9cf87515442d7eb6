/* Tests the table of schemes, drawn from a result of compare-schemes. */
#include "report/read/read.h"
#include "report/write/terminal/terminal_parts.h"

#include <criterion/criterion.h>
#include <string.h>

static const char kResult[] =
    "{\"schema\": \"tessera-compare-schemes/1\", \"version\": \"9\", \"schemes\": ["
    "{\"scheme\": \"fp8\", \"bytes\": 2000, \"ratio_to_bf16\": 0.5, \"worst_block_error\": 0.03, \"sqnr_db\": 31.5, "
    "\"relative_error\": 0.0266, \"max_abs_error\": 0.002, \"options\": \"--scheme fp8\", \"not_taken\": 0}, "
    "{\"scheme\": \"int4\", \"bytes\": 1000, \"ratio_to_bf16\": 0.25, \"not_taken\": 5}], \"tensors\": ["
    "{\"name\": \"a\", \"bytes\": 1, \"schemes\": [{\"scheme\": \"fp8\", \"bytes\": 1, \"relative_error\": 0.01}]}, "
    "{\"name\": \"b\", \"bytes\": 1, \"schemes\": [{\"scheme\": \"fp8\", \"bytes\": 1, \"relative_error\": 0.04}]}, "
    "{\"name\": \"c\", \"bytes\": 1, \"schemes\": [{\"scheme\": \"fp8\", \"bytes\": 1, \"relative_error\": 0.02}]}, "
    "{\"name\": \"d\", \"bytes\": 1, \"schemes\": [{\"scheme\": \"fp8\", \"bytes\": 1, \"relative_error\": 0.03}]}]}";

static void expect_drawn(unsigned width, const char *expected)
{
    const tsr_style style = {.width = width, .utf8 = true};
    tsr_result result;
    tsr_text text = {0};
    tsr_err err = {0};
    cr_assert_eq(tsr_result_read_text(&result, "r", kResult, strlen(kResult), &err), TSR_OK, "%s", err.msg);
    tsr_draw_schemes(&text, &style, &result);
    cr_expect_str_eq(text.data, expected);
    tsr_text_free(&text);
    tsr_result_free(&result);
}

Test(terminal_schemes, draws_all_columns)
{
    expect_drawn(
        200,
        "\n  scheme                                  SQNR dB   relative  max error worst block      bytes   of BF16\n"
        "  fp8                                       31.50    0.02660      0.002      0.0300    2.00 kB     50.0%\n"
        "  int4                                          -          -          -           -    1.00 kB     25.0%  5 "
        "tensors it does not take stay as they are\n"
        "\ntensors with the largest relative error of each scheme:\n"
        "  fp8                                       0.04000  b\n"
        "                                            0.03000  d\n"
        "                                            0.02000  c\n");
}

Test(terminal_schemes, omits_columns_of_narrow_styles)
{
    expect_drawn(60, "\n  scheme                        SQNR dB      bytes   of BF16\n"
                     "  fp8                             31.50    2.00 kB     50.0%\n"
                     "  int4                                -    1.00 kB     25.0%\n"
                     "      5 tensors it does not take stay as they are\n"
                     "\ntensors with the largest relative error of each scheme:\n"
                     "  fp8                             0.04000  b\n"
                     "                                  0.03000  d\n"
                     "                                  0.02000  c\n");
}
