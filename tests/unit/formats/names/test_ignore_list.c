/* Tests lists of unquantized modules: linear time for hostile patterns, messages for unsupported ones, and no lost
 * entry. */
#include "formats/names/ignore_list.h"

#include "tests/unit/repeated.h"

static tsr_ignore_list read_list(const char *config)
{
    tsr_ignore_list list;
    tsr_json_text array;
    cr_assert(tsr_json_find(config, strlen(config), "ignore", &array));
    cr_assert(tsr_ignore_list_read(&list, "ignore", array));
    return list;
}

static bool regex_covers(const tsr_ignore_list *list, const char *module)
{
    return tsr_ignore_list_find(list, TSR_MATCH_REGEX, module) != NULL;
}

/* 1014 characters and a class exceeded a buffer by one. */
Test(ignore_list, long_expressions_neither_overflow_nor_end_the_list)
{
    for (size_t length = 980; length < 1060; length++) {
        char *const config = repeated("{\"ignore\": [\"re:", "x", length, "\\\\w\", \"lm_head\", \"re:.*gate$\"]}");
        tsr_ignore_list list = read_list(config);
        char *const module = repeated("", "x", length + 1, "");
        cr_expect_eq(list.count, 3);
        cr_expect_null(list.unknown);
        cr_expect(regex_covers(&list, module));
        cr_expect_not(regex_covers(&list, module + 1));
        cr_expect(regex_covers(&list, "lm_head"));
        cr_expect(regex_covers(&list, "model.mlp.gate"));
        free(module);
        free(config);
        tsr_ignore_list_free(&list);
    }
}

Test(ignore_list, entries_after_one_that_is_refused_count)
{
    char *const long_one = repeated("{\"ignore\": [\"re:", "(a{9})", 3000, "\", \"lm_head\", \"re:b\"]}");
    tsr_ignore_list list = read_list(long_one);
    cr_expect_eq(list.count, 3);
    cr_expect_eq(list.unknown, list.entries[0]);
    cr_expect(strstr(list.why, "exceed Tessera's limit") != NULL, "%s", list.why);
    cr_expect(regex_covers(&list, "lm_head") && regex_covers(&list, "b"));
    free(long_one);
    tsr_ignore_list_free(&list);

    list = read_list("{\"ignore\": [7, \"a\\u0000b\", \"re:x(?=y)\", [\"c\"], \"lm_head\"]}");
    cr_expect_eq(list.count, 2);
    cr_expect_str_eq(list.odd, "entry 1 is no text");
    cr_expect_str_eq(list.unknown, "re:x(?=y)");
    cr_expect(regex_covers(&list, "lm_head") && !regex_covers(&list, "xy"));
    tsr_ignore_list_free(&list);

    list = read_list("{\"ignore\": [\"a\\u0000b\", \"lm_head\"]}");
    cr_expect_str_eq(list.odd, "entry 1 is not the name of a module");
    cr_expect(regex_covers(&list, "lm_head"));
    tsr_ignore_list_free(&list);
}

/* Tests many expressions, each within its limits. */
Test(ignore_list, expressions_are_bounded_together)
{
    char *const config = repeated("{\"ignore\": [", "\"re:a{1000}\", ", 5000, "\"lm_head\"]}");
    tsr_ignore_list list = read_list(config);
    cr_expect_eq(list.count, 5001);
    cr_expect_not_null(list.unknown);
    cr_expect(strstr(list.why, "together") != NULL, "%s", list.why);
    cr_expect_leq(list.arena.bytes, 4 << 20);
    cr_expect(regex_covers(&list, "lm_head"));
    free(config);
    tsr_ignore_list_free(&list);
}

Test(ignore_list, letters_beyond_ascii_are_left_open)
{
    tsr_ignore_list list = read_list("{\"ignore\": [\"re:\\\\w+x\", \"re:.*gate\"]}");
    cr_expect_null(tsr_ignore_list_unsure(&list, "lm_head"));
    cr_expect_str_eq(tsr_ignore_list_unsure(&list, "caf\xc3\xa9"), "re:\\w+x");
    tsr_ignore_list_free(&list);
    list = read_list("{\"ignore\": [\"re:.*gate\"]}");
    cr_expect_null(tsr_ignore_list_unsure(&list, "caf\xc3\xa9"));
    tsr_ignore_list_free(&list);
}

/* vLLM and transformers read an entry as a path of components, at any place of a name. */
Test(ignore_list, paths_are_whole_components)
{
    tsr_ignore_list list = read_list("{\"ignore\": [\"self_attn\", \"0.mlp\", \"model.lm_head\"]}");
    static const struct {
        const char *module;
        bool covered;
    } kModules[] = {{"model.layers.3.self_attn.q_proj", true},
                    {"model.layers.3.xself_attn.q_proj", false},
                    {"model.layers.3.self_attnx", false},
                    {"model.layers.0.mlp.gate", true},
                    {"model.layers.10.mlp.gate", false},
                    {"self_attn", true},
                    {"lm_head", true},
                    {"a.lm_header", false}};
    for (size_t i = 0; i < sizeof kModules / sizeof *kModules; i++)
        cr_expect_eq(tsr_ignore_list_find(&list, TSR_MATCH_PATH, kModules[i].module) != NULL, kModules[i].covered, "%s",
                     kModules[i].module);
    tsr_ignore_list_free(&list);
}
