/* Tests the JSON reader: valid and invalid text, exact integers, escapes and paths. */
#include "formats/json/json.h"
#include "tests/unit/refusal.h"

#include <criterion/criterion.h>
#include <string.h>

static bool valid(const char *text)
{
    tsr_json_reader r = tsr_json_open("test", text, strlen(text));
    return tsr_json_skip(&r, NULL, NULL) == TSR_OK && tsr_json_finish(&r, NULL) == TSR_OK;
}

Test(json, accepts_what_is_json_and_nothing_else)
{
    static const char *const kGood[] = {"{}",
                                        "[]",
                                        " [1, -0.5e+3, true, false, null, \"x\\u00e9\\ud83d\\ude00\"] ",
                                        "{\"a\": {\"b\": [[]]}, \"c\": 0}",
                                        "\"\xc3\xa9\"",
                                        "[Infinity, -Infinity, NaN]"};
    static const char *const kBad[] = {
        "",      "{",     "[1,]",         "{\"a\":1,}", "{,}",     "01",       "1.",     "+1",
        "nul",   "[1 2]", "{\"a\" 1}",    "{1: 2}",     "\"\\x\"", "\"\xff\"", "\"\n\"", "\"\\ud800\"",
        "{} {}", "[}",    "\"\xc0\x80\"", "1e",         "-",       "Inf",      "-NaN",   "Nan"};
    for (size_t i = 0; i < sizeof kGood / sizeof *kGood; i++)
        cr_expect(valid(kGood[i]), "%s", kGood[i]);
    for (size_t i = 0; i < sizeof kBad / sizeof *kBad; i++)
        cr_expect(!valid(kBad[i]), "%s", kBad[i]);
    char deep[2 * TSR_JSON_MAX_DEPTH + 3];
    memset(deep, '[', TSR_JSON_MAX_DEPTH + 1);
    memset(deep + TSR_JSON_MAX_DEPTH + 1, ']', TSR_JSON_MAX_DEPTH + 1);
    deep[2 * TSR_JSON_MAX_DEPTH + 2] = '\0';
    cr_expect(!valid(deep));
    deep[2 * TSR_JSON_MAX_DEPTH + 1] = '\0';
    cr_expect(valid(deep + 1));
}

Test(json, reads_integers_exactly)
{
    static const struct {
        const char *text;
        bool ok;
        uint64_t value;
    } kCases[] = {{"18446744073709551615", true, UINT64_MAX},
                  {"18446744073709551616", false, 0},
                  {"9007199254740993", true, 9007199254740993u},
                  {"1.0", false, 0},
                  {"1e3", false, 0},
                  {"-1", false, 0}};
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        tsr_json_reader r = tsr_json_open("test", kCases[i].text, strlen(kCases[i].text));
        uint64_t value;
        const bool ok = tsr_json_read_u64(&r, &value, NULL) == TSR_OK;
        cr_expect_eq(ok, kCases[i].ok, "%s", kCases[i].text);
        cr_expect(!ok || value == kCases[i].value, "%s", kCases[i].text);
    }
}

Test(json, names_line_column_and_superfluous_commas)
{
    static const refusal kCases[] = {
        {"{\"a\": 1,\n}", "test: not valid JSON at byte 7 (line 1, column 8): a comma before '}'"},
        {"{\"a\":\n  [1, 2 , ]}", "test: not valid JSON at byte 14 (line 2, column 9): a comma before ']'"},
        {"{\"a\": 1\n \"b\": 2}", "test: not valid JSON at byte 9 (line 2, column 2): expected ',' or '}'"},
        {"{\"a\": 1,", "test: not valid JSON at byte 8 (line 1, column 9): expected a string"},
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        tsr_json_reader r = tsr_json_open("test", kCases[i].text, strlen(kCases[i].text));
        tsr_err err;
        cr_expect_eq(tsr_json_skip(&r, NULL, &err), TSR_E_FORMAT);
        cr_expect_str_eq(err.msg, kCases[i].message);
    }
}

Test(json, decodes_escapes_and_refuses_nul)
{
    tsr_arena arena = {0};
    const char *out;
    static const char kText[] = "\"a\\n\\\"\\u00e9\\ud83d\\ude00\"", kNul[] = "\"a\\u0000b\"";
    tsr_json_reader r = tsr_json_open("test", kText, strlen(kText));
    tsr_json_text text;
    cr_assert_eq(tsr_json_read_string(&r, &text, NULL), TSR_OK);
    cr_assert_eq(tsr_json_decode(&r, text, &arena, &out, NULL), TSR_OK);
    cr_expect_str_eq(out, "a\n\"\xc3\xa9\xf0\x9f\x98\x80");
    r = tsr_json_open("test", kNul, strlen(kNul));
    cr_assert_eq(tsr_json_read_string(&r, &text, NULL), TSR_OK);
    cr_expect_eq(tsr_json_decode(&r, text, &arena, &out, NULL), TSR_E_FORMAT);
    tsr_arena_free(&arena);
}

Test(json, finds_by_path)
{
    static const char kText[] = "{\"a\": {\"b\": [1, {}], \"s\": \"x\"}, \"t\": true}";
    const size_t n = strlen(kText);
    tsr_arena arena = {0};
    tsr_json_text value;
    cr_expect(tsr_json_find(kText, n, "a.b", &value));
    cr_expect(value.size == 7 && memcmp(value.data, "[1, {}]", 7) == 0);
    cr_expect(!tsr_json_find(kText, n, "a.c", &value));
    cr_expect(!tsr_json_find(kText, n, "t.x", &value));
    cr_expect_str_eq(tsr_json_find_string(kText, n, "a.s", &arena), "x");
    cr_expect_null(tsr_json_find_string(kText, n, "t", &arena));
    tsr_arena_free(&arena);
}

Test(json, takes_null_and_no_object_for_no_value)
{
    static const char kText[] = "{\"a\": null, \"b\": {\"c\": \"x\"}}";
    const tsr_json_text object = {.data = kText, .size = sizeof kText - 1}, none = {0};
    tsr_json_text value;
    cr_expect(tsr_json_get(object, "b.c", &value) && tsr_json_is(value, "\"x\""));
    cr_expect(!tsr_json_get(object, "a", &value));
    cr_expect(!tsr_json_get(none, "a", &value));
    cr_expect(tsr_json_says(object, "b.c", "\"x\""));
    cr_expect(!tsr_json_says(object, "b.c", "\"y\""));
    cr_expect(!tsr_json_says(object, "a", "null"));
    cr_expect(!tsr_json_says(none, "b.c", "\"x\""));
}

Test(json, goes_through_members)
{
    static const char kText[] = "{\"a\": [1], \"b\": {}}";
    tsr_json_text key, value;
    tsr_json_reader r = tsr_json_members((tsr_json_text){.data = kText, .size = sizeof kText - 1});
    cr_assert(tsr_json_member(&r, &key, &value) && tsr_json_is(key, "a") && tsr_json_is(value, "[1]"));
    cr_assert(tsr_json_member(&r, &key, &value) && tsr_json_is(key, "b") && tsr_json_is(value, "{}"));
    cr_expect(!tsr_json_member(&r, &key, &value));
    cr_expect(!tsr_json_member(&r, &key, &value));
    r = tsr_json_members((tsr_json_text){.data = kText + 6, .size = 3});
    cr_expect(!tsr_json_member(&r, &key, &value));
    r = tsr_json_members((tsr_json_text){0});
    cr_expect(!tsr_json_member(&r, &key, &value));
}
