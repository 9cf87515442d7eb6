/* Tests the lines about judgements: their order, and what long lists omit. */
#include "report/read/read.h"
#include "report/write/terminal/terminal_parts.h"

#include <criterion/criterion.h>

enum { SUBJECTS = 4, JUDGEMENTS = 3 };

/* Names of subjects, and the number of judgements of each that fail. */
static const char *const kNames[SUBJECTS] = {"a", "b", "c", "d"};
static const unsigned kFailed[SUBJECTS] = {0, 0, 1, 3};

static tsr_result make_result(void)
{
    tsr_result result = {.path = "r", .kind = tsr_result_kind_of("tessera-verify-kernels/1")};
    for (size_t s = 0; s < SUBJECTS; s++) {
        for (size_t i = 0; i < JUDGEMENTS; i++) {
            const bool fails = i < kFailed[s];
            tsr_row row;
            tsr_row_clear(&row);
            row.name = kNames[s];
            row.kind = "kernel";
            row.what = "out";
            row.note = fails ? "wrong" : NULL;
            row.outcome = fails ? TSR_OUTCOME_FAILED : TSR_OUTCOME_PASSED;
            row.figures[TSR_FIGURE_OF_BOUND] = 0.5;
            row.figures[TSR_FIGURE_OF_EXPECTED] = 1;
            cr_assert_eq(tsr_result_add_judgement(&result, &row, NULL), TSR_OK);
        }
    }
    cr_assert_eq(tsr_result_add_skipped(&result, "e", "too small", NULL), TSR_OK);
    cr_assert_eq(tsr_result_add_skipped(&result, "f", "too small", NULL), TSR_OK);
    return result;
}

static void expect_subjects(size_t most, size_t most_failed, const char *expected)
{
    const tsr_style style = {.width = 200, .utf8 = true, .full = "--csv"};
    tsr_result result = make_result();
    tsr_text text = {0};
    tsr_draw_subjects(&text, &style, &result, most, most_failed);
    cr_expect_str_eq(text.data, expected);
    tsr_text_free(&text);
    tsr_result_free(&result);
}

#define RUNS " 3 runs of kernels at most 0.5 of the bound, 1.00 of the expected RMS;"
#define FAILED \
    "  FAIL out                                     0.5 of the bound, 1.00 of the expected RMS\n       wrong\n"
#define FAILED_C "FAIL c:" RUNS " 1 of 3 judgements beyond their limits\n" FAILED
#define PASSED_A "ok   a:" RUNS " all 3 judgements within their limits\n"

Test(terminal_judgements, keeps_the_order_of_subjects_if_all_fit)
{
    expect_subjects(4, 3,
                    PASSED_A "ok   b:" RUNS " all 3 judgements within their limits\n" FAILED_C "FAIL d:" RUNS
                             " 3 of 3 judgements beyond their limits\n" FAILED FAILED FAILED);
}

Test(terminal_judgements, draws_subjects_that_failed_first_if_not_all_fit)
{
    expect_subjects(3, 1,
                    FAILED_C "FAIL d:" RUNS " 3 of 3 judgements beyond their limits\n" FAILED
                             "  ... and 2 more that failed (--csv FILE lists all)\n" PASSED_A
                             "... and 1 more tensors or sets (--csv FILE lists all)\n");
}

Test(terminal_judgements, counts_what_was_judged_and_what_was_skipped)
{
    const tsr_style style = {.width = 200, .utf8 = true, .full = "--json"};
    tsr_result result = make_result();
    tsr_text text = {0};
    tsr_draw_judged(&text, &style, &result, 1);
    cr_expect_str_eq(text.data, "skipped e: too small\n... and 1 more that were skipped (--json FILE lists all)\n"
                                "4 of 12 judgements are beyond their limits\n");
    tsr_text_free(&text);
    tsr_result_free(&result);
}
