/* Tests edits of config.json: inserted and removed members, with all other bytes unchanged. */
#include "formats/json/json_edit.h"

#include <criterion/criterion.h>
#include <string.h>

Test(json_edit, inserts_in_the_style_of_the_file)
{
    static const char *const kCases[][2] = {
        {"{\n    \"a\": 1.0,\n    \"b\": [1,2]\n}\n",
         "{\n    \"a\": 1.0,\n    \"b\": [1,2],\n    \"k\": {\n      \"x\": 1\n    }\n}\n"},
        {"{\"a\":1}", "{\"a\":1,\"k\": {\n  \"x\": 1\n}}"},
        {"{}", "{\"k\": {\n  \"x\": 1\n}}"},
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        tsr_text out = {0};
        cr_assert_eq(tsr_json_edit_set(&out, kCases[i][0], strlen(kCases[i][0]), "k", "{\n  \"x\": 1\n}", NULL),
                     TSR_OK);
        cr_expect_str_eq(out.data, kCases[i][1]);
        tsr_text_free(&out);
    }
}

Test(json_edit, removes_a_member_and_nothing_else)
{
    static const char *const kCases[][2] = {
        {"{\"k\": 1}", "{}"},
        {"{ \"k\": 1 }", "{ }"},
        {"{\n  \"a\": 10000.0,\n  \"k\": {\"x\": [1]}\n}\n", "{\n  \"a\": 10000.0\n}\n"},
        {"{\n  \"k\": 1,\n  \"a\": 2\n}", "{\n  \"a\": 2\n}"},
        {"{\n  \"a\": 1,\n  \"k\": 1 ,\n  \"b\": 2\n}", "{\n  \"a\": 1,\n  \"b\": 2\n}"},
        {"{\n  \"a\": 1\n}", "{\n  \"a\": 1\n}"},
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        tsr_text out = {0};
        cr_assert_eq(tsr_json_edit_remove(&out, kCases[i][0], strlen(kCases[i][0]), "k", NULL), TSR_OK);
        cr_expect_str_eq(out.data, kCases[i][1]);
        tsr_text_free(&out);
    }
}
