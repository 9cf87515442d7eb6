/* Tests the index of the members of a document against reading the document. */
#include "formats/json/json_index.h"
#include "tests/unit/refusal.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kText[] = " {\"a\": {\"b\": [1, {\"x\": 2}], \"s\": \"x\\n\", \"deep\": {\"\": {\"n\": -1.50}}},\r\n"
                            "  \"\\u0061b\" :\ttrue, \"list\": [{\"a\": 1}, {\"a\": 2}], \"e\": {}, \"z\": 12} ";

static const char *const kPaths[] = {"a", "a.b", "a.s", "a.deep", "a.deep.", "a.deep..n", "ab", "list", "e", "z",
                                     /* not there */
                                     "", "b", "a.c", "a.b.x", "z.a", "ab.x", "list.a", "e.a", "a.deep.n", "A",
                                     "\\u0061b"};

static tsr_json_index read_index(const char *text)
{
    tsr_json_index index;
    tsr_err err = {0};
    cr_assert_eq(tsr_json_index_read(&index, "test", text, strlen(text), &err), TSR_OK, "%s", err.msg);
    return index;
}

static void expect_same(bool found, tsr_json_text got, bool wanted, tsr_json_text want, const char *path)
{
    cr_expect_eq(found, wanted, "'%s'", path);
    if (found && wanted)
        cr_expect(got.data == want.data && got.size == want.size && got.escaped == want.escaped, "'%s'", path);
}

Test(json_index, answers_as_reading_does)
{
    tsr_json_index index = read_index(kText);
    for (size_t i = 0; i < sizeof kPaths / sizeof *kPaths; i++) {
        tsr_json_text got = {0}, want = {0};
        const bool wanted = tsr_json_find(kText, sizeof kText - 1, kPaths[i], &want);
        expect_same(tsr_json_index_find(&index, kPaths[i], &got), got, wanted, want, kPaths[i]);
    }
    tsr_json_index_free(&index);
}

Test(json_index, finds_from_any_object_on)
{
    static const char *const kInner[] = {"b", "s", "deep..n", "n", "a", "x", "deep"};
    static const char kOther[] = "{\"b\": 5}";
    tsr_json_index index = read_index(kText);
    for (size_t i = 0; i < sizeof kPaths / sizeof *kPaths; i++) {
        tsr_json_text object;
        if (!tsr_json_index_find(&index, kPaths[i], &object))
            continue;
        for (size_t k = 0; k < sizeof kInner / sizeof *kInner; k++) {
            tsr_json_text got = {0}, want = {0};
            const bool wanted = tsr_json_find(object.data, object.size, kInner[k], &want);
            expect_same(tsr_json_index_find_in(&index, object, kInner[k], &got), got, wanted, want, kInner[k]);
        }
    }
    /* Values without an entry are read: elements of arrays, and other texts. */
    tsr_json_text value;
    const char *const element = strstr(kText, "{\"a\": 2}");
    cr_expect(tsr_json_index_find_in(&index, (tsr_json_text){.data = element, .size = 8}, "a", &value));
    cr_expect_eq(*value.data, '2');
    cr_expect(tsr_json_index_find_in(&index, (tsr_json_text){.data = kOther, .size = 8}, "b", &value));
    cr_expect_eq(*value.data, '5');
    tsr_json_index_free(&index);
}

/* Overwrites everything except the requested keys after the index was made. */
Test(json_index, reads_the_text_once)
{
    char text[] = "{\"many\": [1, 2, 3, 4], \"q\": {\"other\": {\"a\": 1}, \"method\": \"fp8\"}}";
    tsr_json_index index = read_index(text);
    tsr_json_text value;
    memset(text, '!', (size_t)(strstr(text, "q\"") - text));
    memset(strstr(text, "\"other"), '!', strlen("\"other\": {\"a\": 1}, "));
    cr_assert(tsr_json_index_find(&index, "q.method", &value));
    cr_expect(tsr_json_is(value, "\"fp8\""));
    tsr_json_index_free(&index);
}

Test(json_index, finds_each_of_many)
{
    enum { MANY = 5000 };
    char *const text = malloc(MANY * 32);
    size_t n = 0;
    cr_assert_not_null(text);
    for (size_t i = 0; i < MANY; i++)
        n += (size_t)sprintf(text + n, "%s\"k%zu\": {\"k\": %zu}", i == 0 ? "{" : ", ", i, i);
    sprintf(text + n, "}");
    tsr_json_index index = read_index(text);
    for (size_t i = 0; i < MANY; i++) {
        char path[32];
        tsr_json_text value;
        uint64_t number;
        sprintf(path, "k%zu.k", i);
        cr_assert(tsr_json_index_find(&index, path, &value) && tsr_json_u64_of(value, &number) && number == i);
    }
    tsr_json_index_free(&index);
    free(text);
}

Test(json_index, refuses_what_is_no_object_and_what_is_ambiguous)
{
    static const refusal kCases[] = {
        {"[1]", "not a JSON object"},
        {"", "the text ends"},
        {"{\"a\": 1} x", "text after the end"},
        {"{\"a\": {\"b\": [1}}", "test: not valid JSON at byte 14"},
        {"{\"a\": 1, \"b\": 2, \"a\": 3}", "duplicate key 'a' in one object, the second at byte 17"},
        {"{\"a\": {\"b\": 2, \"\\u0062\": 3}}", "duplicate key"},
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        tsr_json_index index;
        tsr_err err = {0};
        cr_expect_eq(tsr_json_index_read(&index, "test", kCases[i].text, strlen(kCases[i].text), &err), TSR_E_FORMAT);
        cr_expect_not_null(strstr(err.msg, kCases[i].message), "%s", err.msg);
    }
    tsr_json_index index = read_index("{\"a\": {\"b\": 1}, \"c\": {\"b\": 1}, \"b\": 1}");
    tsr_json_index_free(&index);
}
