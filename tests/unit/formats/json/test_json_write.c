/* Tests the JSON writer: commas, indentation, escapes and numbers. */
#include "formats/json/json_write.h"

#include <criterion/criterion.h>
#include <math.h>

Test(json_write, writes_what_reads_back)
{
    tsr_text t = {0};
    tsr_json_begin_object(&t, false);
    tsr_json_key(&t, "quote\"\x01");
    tsr_json_begin_array(&t, true);
    tsr_json_number(&t, 0.1);
    tsr_json_number(&t, 1.0 / 3);
    tsr_json_number(&t, NAN);
    tsr_json_begin_object(&t, false);
    tsr_json_end_object(&t);
    tsr_json_end_array(&t);
    tsr_json_key(&t, "n");
    tsr_json_u64(&t, UINT64_MAX);
    tsr_json_end_object(&t);
    cr_expect_str_eq(t.data, "{\n  \"quote\\\"\\u0001\": [0.1, 0.33333333333333331, null, {}],\n"
                             "  \"n\": 18446744073709551615\n}");
    tsr_text_free(&t);
}

Test(json_write, writes_members)
{
    tsr_text t = {0};
    tsr_json_begin_object(&t, false);
    tsr_json_member_strings(&t, "one", (const char *const[]){"a"}, 1);
    tsr_json_member_strings(&t, "two", (const char *const[]){"a", "b"}, 2);
    tsr_json_member_empty(&t, "none");
    tsr_json_member_string(&t, "null", NULL);
    tsr_json_end_object(&t);
    cr_expect_str_eq(t.data, "{\n  \"one\": [\"a\"],\n  \"two\": [\n    \"a\",\n    \"b\"\n  ],\n  \"none\": {},\n"
                             "  \"null\": null\n}");
    tsr_text_free(&t);
}

Test(json_write, writes_a_document)
{
    tsr_text t = {0};
    tsr_json_begin_document(&t, "tessera-x/1");
    tsr_json_member_object(&t, "o", true);
    tsr_json_end_object(&t);
    tsr_json_member_array(&t, "a", false);
    tsr_json_u64(&t, 1);
    tsr_json_end_array(&t);
    tsr_json_end_document(&t);
    cr_expect_str_eq(t.data, "{\n  \"schema\": \"tessera-x/1\",\n  \"version\": \"" TSR_VERSION
                             "\",\n  \"o\": {},\n  \"a\": [\n    1\n  ]\n}\n");
    tsr_text_free(&t);
}
