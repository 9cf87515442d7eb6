/* Tests the matching of rules to tensors against trying each rule in order, and counts the work. */
#include "convert/search/rules_match.h"

#include "common/glob.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 60, ITEMS = 40, ROUNDS = 1000 };

/* Makes names of few letters, so that many match; every other one is a weight's. */
static void spell(char *text, size_t size, const char *letters, const char *end)
{
    size_t n = 0;
    for (const uint64_t length = 1 + random_bits() % 6; n < length; n++)
        text[n] = letters[random_bits() % strlen(letters)];
    snprintf(text + n, size - n, "%s", end);
}

static bool fits(const char *pattern, const char *name)
{
    char module[64];
    const char *const weight = strstr(name, ".weight");
    snprintf(module, sizeof module, "%.*s", weight == NULL ? 0 : (int)(weight - name), name);
    return tsr_glob_match(pattern, name) || (weight != NULL && tsr_glob_match(pattern, module));
}

Test(rules_match, is_what_trying_each_rule_finds)
{
    static tsr_tensor tensors[TENSORS];
    static tsr_rules_item items[ITEMS];
    static char names[TENSORS][32], patterns[ITEMS][32];
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < TENSORS; i++) {
            spell(names[i], sizeof names[i], "ab.", i % 2 == 0 ? ".weight" : "");
            tensors[i].name = names[i];
        }
        for (size_t k = 0; k < ITEMS; k++) {
            spell(patterns[k], sizeof patterns[k],
                  k % 3 == 0   ? "ab."
                  : k % 7 == 1 ? "ab.*[]-"
                               : "ab.*?",
                  k % 5 == 0 ? ".weight" : "");
            items[k].pattern = patterns[k];
        }
        const tsr_checkpoint c = {.path = "c", .tensors = {tensors, TENSORS, TENSORS}};
        const tsr_scheme_rules rules = {.path = "r", .items = items, .count = ITEMS};
        tsr_rules_match match;
        tsr_arena arena = {0};
        cr_assert_eq(tsr_rules_match_all(&match, &rules, &c, &arena, NULL), TSR_OK);
        for (size_t i = 0; i < TENSORS; i++) {
            size_t k = 0;
            while (k < ITEMS && !fits(patterns[k], names[i]))
                k++;
            cr_assert_eq(match.of[i], k < ITEMS ? &items[k] : NULL, "round %d: '%s'", round, names[i]);
        }
        for (size_t k = 0; k < ITEMS; k++) {
            size_t i = 0;
            while (i < TENSORS && !fits(patterns[k], names[i]))
                i++;
            cr_assert_eq(match.fits[k], i < TENSORS, "round %d: '%s'", round, patterns[k]);
        }
        tsr_arena_free(&arena);
    }
}

/* ---- the work ---- */

enum { MANY = 20000, RULES = 100000 };

static tsr_status match_many(const char *const *formats, size_t n_formats, tsr_rules_match *match)
{
    tsr_tensor *const tensors = calloc(MANY, sizeof *tensors);
    tsr_rules_item *const items = calloc(RULES, sizeof *items);
    tsr_arena arena = {0}, scratch = {0};
    for (size_t i = 0; i < MANY; i++)
        tensors[i].name = tsr_arena_printf(&arena, "model.layers.%zu.mlp.experts.%zu.up_proj.weight", i / 200, i % 200);
    for (size_t k = 0; k < RULES; k++)
        items[k].pattern = tsr_arena_printf(&arena, formats[k % n_formats], k % (2 * MANY) / 200, k % 200);
    const tsr_checkpoint c = {.path = "c", .tensors = {tensors, MANY, MANY}};
    const tsr_scheme_rules rules = {.path = "r", .items = items, .count = RULES};
    const tsr_status status = tsr_rules_match_all(match, &rules, &c, &scratch, NULL);
    tsr_arena_free(&scratch);
    tsr_arena_free(&arena);
    free(tensors);
    free(items);
    return status;
}

Test(rules_match, a_name_is_looked_up)
{
    static const char *const kFormats[] = {"model.layers.%zu.mlp.experts.%zu.up_proj",
                                           "model.layers.%zu.mlp.experts.%zu.up_proj.weight",
                                           "model.layers.%zu.mlp.experts.%zu.down_proj"};
    tsr_rules_match match;
    cr_assert_eq(match_many(kFormats, sizeof kFormats / sizeof *kFormats, &match), TSR_OK);
    cr_expect_lt(match.steps, 40 * RULES);
}

Test(rules_match, a_wildcard_is_tried_where_its_beginning_or_end_stands)
{
    static const char *const kFormats[] = {"model.layers.%zu.mlp.experts.%zu.*",
                                           "model.layers.%zu.mlp.experts.%zu.up_*ght",
                                           "*.%zu.mlp.experts.%zu.down_proj"};
    tsr_rules_match match;
    cr_assert_eq(match_many(kFormats, sizeof kFormats / sizeof *kFormats, &match), TSR_OK);
    cr_expect_lt(match.steps, 400 * RULES);
}

Test(rules_match, work_beyond_the_bound_is_refused)
{
    /* `?` begins at each character, which makes the steps short. */
    static const char *const kFormats[] = {"*?~%zu.%zu*"};
    tsr_rules_match match;
    cr_assert_eq(match_many(kFormats, 1, &match), TSR_E_UNSUPPORTED);
    cr_expect_lt(match.steps, 251000000);
}
