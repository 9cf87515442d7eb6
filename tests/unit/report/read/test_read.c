/* Tests reading of results: valid ones give rows, figures and findings; invalid ones are rejected with the byte
 * offset. */
#include "report/read/read.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define HEAD "{\"schema\": \"tessera-quantization-report/1\", \"version\": \"9\", \"command\": \"quantize\", "
#define TAIL                                                                                                      \
    "], \"whole\": {\"tensors_quantized\": 1, \"sqnr_db\": 31.5, \"elements\": 4}, \"kept\": [{\"name\": \"n\", " \
    "\"reason\": \"norm\"}]}"
#define SOUND                                                                                                         \
    HEAD "\"tensors\": [{\"name\": \"a.layers.1.q.weight\", \"shape\": [2, 2], \"elements\": 4, \"sqnr_db\": 31.25, " \
         "\"worst_block_error\": 0.5, \"worst_block_at\": [1, 0], \"later\": {\"unknown\": [1]}}" TAIL

static tsr_status read_text(tsr_result *result, const char *text, tsr_err *err)
{
    err->msg[0] = '\0';
    return tsr_result_read_text(result, "r.json", text, strlen(text), err);
}

Test(read, a_quantization_report)
{
    tsr_result r;
    tsr_err err;
    cr_assert_eq(read_text(&r, SOUND, &err), TSR_OK, "%s", err.msg);
    cr_expect_str_eq(r.title, "quantization report");
    cr_expect_str_eq(r.version, "9");
    cr_assert_eq(r.n_rows, 2);
    cr_expect_str_eq(r.rows[0].name, "a.layers.1.q.weight");
    cr_expect_eq(r.rows[0].figures[TSR_FIGURE_SQNR], 31.25);
    cr_expect_str_eq(r.rows[0].block_at, "[1, 0]");
    cr_expect_eq(r.rows[0].place.layer, 1);
    cr_expect(isnan(r.rows[0].figures[TSR_FIGURE_KL_MEAN]));
    cr_expect_str_eq(r.series[r.rows[1].series].name, "kept");
    cr_expect_str_eq(r.rows[1].note, "norm");
    cr_expect_eq(r.series[0].whole.figures[TSR_FIGURE_SQNR], 31.5);
    cr_expect_str_eq(tsr_fact_of(&r.facts, "tensors_quantized"), "1");
    cr_expect_eq(r.outcome, TSR_OUTCOME_NONE);
    tsr_result_free(&r);
}

/* null in JSON is infinity; the relative error determines its sign. */
Test(read, tells_nothing_lost_from_all_lost)
{
    tsr_result r;
    tsr_err err;
    cr_assert_eq(
        read_text(
            &r,
            HEAD
            "\"tensors\": [{\"name\": \"a\", \"sqnr_db\": null, \"relative_error\": 0}, "
            "{\"name\": \"b\", \"sqnr_db\": null, \"relative_error\": null, \"differ\": 3}, {\"name\": \"c\"}" TAIL,
            &err),
        TSR_OK, "%s", err.msg);
    cr_expect_eq(r.rows[0].figures[TSR_FIGURE_SQNR], INFINITY);
    cr_expect_eq(r.rows[1].figures[TSR_FIGURE_SQNR], -INFINITY);
    cr_expect(isnan(r.rows[2].figures[TSR_FIGURE_SQNR]));
    tsr_result_free(&r);
}

Test(read, findings_of_verify_and_the_rows_they_are_about)
{
    static const char kText[] =
        "{\"tensors\": [{\"name\": \"w\", \"state\": \"differs\", \"a\": {\"dtype\": \"BF16\", \"shape\": [128, 128]}, "
        "\"b\": {\"dtype\": \"F8_E4M3\", \"shape\": [128, 128]}, \"sqnr_db\": 3.5, \"worst_blocks\": [{\"matrix\": 2, "
        "\"rows\": [0, 128], \"columns\": [128, 256], \"relative_error\": 0.75}, {\"rows\": [0, 1], \"columns\": [0, "
        "1], "
        "\"relative_error\": 0.5}]}, {\"name\": \"v\", \"state\": \"identical\"}], "
        "\"schema\": \"tessera-verify/1\", \"version\": \"9\", \"passed\": false, \"limits\": {\"min_sqnr_db\": 30}, "
        "\"whole\": {}, "
        "\"judged\": {\"values\": 2, \"config\": 0}, \"findings\": [{\"check\": \"values\", \"where\": \"w\", "
        "\"what\": \"low\"}, "
        "{\"check\": \"config\", \"where\": \"hidden_size\", \"what\": \"other\"}]}";
    tsr_result r;
    tsr_err err;
    cr_assert_eq(read_text(&r, kText, &err), TSR_OK, "%s", err.msg);
    cr_expect_eq(r.outcome, TSR_OUTCOME_FAILED);
    cr_assert_eq(r.n_findings, 2);
    cr_expect_eq(r.findings[0].row, 0);
    cr_expect_eq(r.findings[1].row, TSR_NO_ROW);
    cr_expect_eq(r.rows[0].outcome, TSR_OUTCOME_FAILED);
    cr_expect_eq(r.rows[1].outcome, TSR_OUTCOME_PASSED);
    cr_expect_str_eq(r.rows[0].dtype, "BF16 to F8_E4M3");
    cr_expect_str_eq(r.rows[0].block_at, "rows 0..127, columns 128..255 of matrix 2");
    cr_expect_eq(r.rows[0].figures[TSR_FIGURE_WORST_BLOCK], 0.75);
    cr_assert_eq(r.n_checks, 2);
    cr_expect_eq(r.checks[1].judged, 0);
    cr_expect_str_eq(tsr_fact_of(&r.limits, "min_sqnr_db"), "30");
    tsr_result_free(&r);
}

Test(read, an_error_stands_for_a_result_of_every_kind)
{
    static const char *const kOf[] = {"verify", "plan-schemes", "quantize", "inspect", "report"};
    for (size_t i = 0; i < sizeof kOf / sizeof *kOf; i++) {
        tsr_result r;
        tsr_err err;
        char text[256];
        snprintf(text, sizeof text,
                 "{\"schema\": \"tessera-%s/1\", \"version\": \"9\", \"error\": {\"code\": 4, \"message\": \"full\"}}",
                 kOf[i]);
        cr_assert_eq(read_text(&r, text, &err), TSR_OK, "%s", err.msg);
        cr_expect_str_eq(r.error, "full");
        cr_expect(r.error_code == 4 && r.outcome == TSR_OUTCOME_FAILED && r.n_findings == 1);
        tsr_result_free(&r);
    }
}

static const struct {
    const char *text, *words;
    tsr_status status;
} kRefused[] = {
    {"", "byte 0", TSR_E_FORMAT},
    {"[]", "not a result of Tessera", TSR_E_UNSUPPORTED},
    {"{}", "no 'schema'", TSR_E_UNSUPPORTED},
    {"{\"schema\": 1}", "no 'schema'", TSR_E_UNSUPPORTED},
    {"{\"schema\": \"tessera-verify/2\"}", "reads tessera-verify/1", TSR_E_UNSUPPORTED},
    {"{\"schema\": \"tessera-rules/1\"}", "not a result of a command", TSR_E_UNSUPPORTED},
    {"{\"schema\": \"tessera-verify/1\"", "byte", TSR_E_FORMAT},
    {"{\"schema\": \"tessera-report/1\", \"version\": \"1\"}", "not a result of a command", TSR_E_UNSUPPORTED},
    {"{\"schema\": \"tessera-diff/1\", \"version\": \"1\", \"error\": {\"code\": 3}}", "ends without 'message'",
     TSR_E_FORMAT},
    {"{\"schema\": \"tessera-diff/1\", \"version\": \"1\"}", "ends without 'whole'", TSR_E_FORMAT},
    {HEAD "\"tensors\": [" TAIL " x", "text after the end", TSR_E_FORMAT},
    {HEAD "\"tensors\": [{\"shape\": [1]}" TAIL, "a tensor ends without 'name'", TSR_E_FORMAT},
    {HEAD "\"tensors\": [{\"name\": null}" TAIL, "a name is null", TSR_E_FORMAT},
    {HEAD "\"tensors\": [{\"name\": 3}" TAIL, "expected a string", TSR_E_FORMAT},
    {HEAD "\"tensors\": [{\"name\": \"a\", \"name\": \"b\"}" TAIL, "duplicate member 'name'", TSR_E_FORMAT},
    {HEAD "\"tensors\": [{\"name\": \"a\", \"sqnr_db\": 1, \"sqnr_db\": 2}" TAIL, "duplicate member 'sqnr_db'",
     TSR_E_FORMAT},
    {HEAD "\"tensors\": [{\"name\": \"a\", \"sqnr_db\": \"high\"}" TAIL, "expected a number", TSR_E_FORMAT},
    {HEAD "\"tensors\": [{\"name\": \"a\", \"sqnr_db\": 1e999}" TAIL, "exceeds the range of a double", TSR_E_FORMAT},
    {HEAD "\"tensors\": [{\"name\": \"a\", \"elements\": -4}" TAIL, "a non-negative integer", TSR_E_FORMAT},
    {HEAD "\"tensors\": [{\"name\": \"a\", \"elements\": 1.5}" TAIL, "a non-negative integer", TSR_E_FORMAT},
    {HEAD "\"tensors\": [{\"name\": \"a\", \"shape\": [\"x\"]}" TAIL, "a list of integers", TSR_E_FORMAT},
    {HEAD "\"tensors\": 4" TAIL, "expected an array", TSR_E_FORMAT},
    {HEAD "\"version\": \"8\", \"tensors\": [" TAIL, "duplicate member 'version'", TSR_E_FORMAT},
    {HEAD "\"scheme\": \"a\", \"scheme\": \"b\", \"tensors\": [" TAIL, "duplicate member", TSR_E_FORMAT},
};

Test(read, refuses_all_else_and_says_where)
{
    for (size_t i = 0; i < sizeof kRefused / sizeof *kRefused; i++) {
        tsr_result r;
        tsr_err err;
        const tsr_status status = read_text(&r, kRefused[i].text, &err);
        cr_expect_eq(status, kRefused[i].status, "%s: %d: %s", kRefused[i].text, status, err.msg);
        cr_expect_not_null(strstr(err.msg, kRefused[i].words), "%s: %s", kRefused[i].text, err.msg);
        cr_expect_eq(strncmp(err.msg, "r.json: ", 8), 0, "%s", err.msg);
        if (status == TSR_OK)
            tsr_result_free(&r);
    }
}

/* Every truncation of a valid result, and every change of a byte, is read or rejected. */
Test(read, survives_what_is_cut_and_what_is_damaged)
{
    char text[sizeof SOUND];
    size_t refused = 0;
    for (size_t i = 0; i < sizeof SOUND - 1; i++) {
        tsr_result r;
        tsr_err err;
        cr_expect_neq(tsr_result_read_text(&r, "r.json", SOUND, i, &err), TSR_OK, "%zu bytes", i);
        for (const char *c = "\"{}[],:0-x\x01\xff"; *c != '\0'; c++) {
            memcpy(text, SOUND, sizeof text);
            text[i] = *c;
            const tsr_status status = tsr_result_read_text(&r, "r.json", text, sizeof text - 1, &err);
            refused += status != TSR_OK;
            if (status == TSR_OK)
                tsr_result_free(&r);
        }
    }
    cr_expect_gt(refused, 1000);
}
