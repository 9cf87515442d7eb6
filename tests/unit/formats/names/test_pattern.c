/* Tests patterns after "re:" against Python's re.match: results, messages for unsupported syntax, and linear time and
 * memory. */
#include "formats/names/pattern.h"

#include "tests/unit/repeated.h"

static tsr_status compile(const char *text, tsr_pattern *pattern, tsr_arena *arena, tsr_err *err)
{
    err->msg[0] = '\0';
    return tsr_pattern_compile(pattern, text, arena, err);
}

/* Results of Python 3.12's re.match for each pattern. */
Test(pattern, fits_what_python_fits)
{
    static const struct {
        const char *pattern, *name;
        bool fits;
    } kCases[] = {
        {".*o_proj$", "model.layers.0.self_attn.o_proj", true},
        {".*o_proj$", "model.layers.0.self_attn.o_proj.weight", false},
        {"model\\.layers\\.\\d+\\.(?:self_attn|mlp)\\.o_.*?", "model.layers.17.self_attn.o_proj", true},
        {"model\\.layers\\.\\d+\\.(?:self_attn|mlp)\\.o_.*?", "model.layers.x.self_attn.o_proj", false},
        {"self_attn.o_proj", "model.self_attn.o_proj", false},
        {"lm_head", "lm_head_x", true},
        {"ab+c", "ac", false},
        {"ab+c", "abbc", true},
        {"^lm_head$", "lm_head", true},
        {"lm_head$", "lm_head\n", true},
        {"lm_head\\Z", "lm_head\n", false},
        {"a.c", "a\nc", false},
        {"a.c",
         "a\xc3\xa9"
         "c",
         true},
        {"[^.]+\\.x", "layers.x", true},
        {"[^.]+\\.x", "la.yers.x", false},
        {"[]a]b", "]b", true},
        {"[a\\-z]+$", "a-z", true},
        {"[a\\-z]+$", "abz", false},
        {"[\\w.]+:$", "a_1.b:", true},
        {"(a|b|cd)*e", "abcdcde", true},
        {"(a|b|cd)*e", "abce", false},
        {"(a*)*b", "aaab", true},
        {"x{2}y", "xxy", true},
        {"x{2}y", "xxxy", false},
        {"x{2,}y", "xxxxy", true},
        {"x{,2}y", "xxxy", false},
        {"(ab){1,3}$", "ababab", true},
        {"(ab){1,3}$", "abababab", false},
        {"(ab){0,2}c", "c", true},
        {"(a{2}|b){2}c", "aabc", true},
        {"(a{2}|b){2}c", "abac", false},
        {"x{y}", "x{y}", true},
        {"x{0}y", "y", true},
        {"(?P<layer>\\d+)x", "12x", true},
        {"\\bproj\\b", "proj.x", true},
        {"\\bproj\\b", "projx", false},
        {"", "anything", true},
        {"a|", "b", true},
        {"\xc3\xa9+x", "\xc3\xa9\xc3\xa9x", true},
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        tsr_arena arena = {0};
        tsr_pattern pattern;
        tsr_err err;
        cr_assert_eq(compile(kCases[i].pattern, &pattern, &arena, &err), TSR_OK, "%s: %s", kCases[i].pattern, err.msg);
        cr_expect_eq(tsr_pattern_match(&pattern, kCases[i].name, NULL), kCases[i].fits, "'%s' on '%s'",
                     kCases[i].pattern, kCases[i].name);
        tsr_arena_free(&arena);
    }
}

Test(pattern, names_what_it_does_not_know)
{
    static const struct {
        const char *pattern, *says;
        tsr_status status;
    } kCases[] = {
        {"a(?!b)", "an unsupported kind of group, at character 2: '(?!b)'", TSR_E_UNSUPPORTED},
        {"(?i)a", "kind of group", TSR_E_UNSUPPORTED},
        {"(?P=name)", "kind of group", TSR_E_UNSUPPORTED},
        {"(a)\\1", "an unsupported escape, at character 4: '\\1'", TSR_E_UNSUPPORTED},
        {"\\x41", "escape", TSR_E_UNSUPPORTED},
        {"\\p{L}", "escape", TSR_E_UNSUPPORTED},
        {"a++", "possessive", TSR_E_UNSUPPORTED},
        {"a**", "a repeat of a repeat", TSR_E_FORMAT},
        {"a{2}{3}", "a repeat of a repeat", TSR_E_FORMAT},
        {"*a", "nothing to repeat, at character 1", TSR_E_FORMAT},
        {"(|*)", "nothing to repeat", TSR_E_FORMAT},
        {"^*", "nothing to repeat", TSR_E_FORMAT},
        {"a{3,2}", "minimum is above its maximum", TSR_E_FORMAT},
        {"a{1001}", "exceeds Tessera's limit", TSR_E_UNSUPPORTED},
        {"a{99999999999999999999}", "exceeds Tessera's limit", TSR_E_UNSUPPORTED},
        {"(a", "without its ')'", TSR_E_FORMAT},
        {"a)", "without its '('", TSR_E_FORMAT},
        {"[a", "without its ']'", TSR_E_FORMAT},
        {"[z-a]", "range", TSR_E_FORMAT},
        {"[\\w-a]", "range", TSR_E_FORMAT},
        {"a\\", "backslash", TSR_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        tsr_arena arena = {0};
        tsr_pattern pattern;
        tsr_err err;
        cr_expect_eq(compile(kCases[i].pattern, &pattern, &arena, &err), kCases[i].status, "%s", kCases[i].pattern);
        cr_expect(strstr(err.msg, kCases[i].says) != NULL, "%s: %s", kCases[i].pattern, err.msg);
        cr_expect_not(tsr_pattern_match(&pattern, "a", NULL), "%s", kCases[i].pattern);
        tsr_arena_free(&arena);
    }
}

/* Nested repeats multiply, and so do alternatives in them if a matcher tries one after another. The number of steps
 * grows with the name, and stays below four for each step of the expression and position in the name. */
Test(pattern, no_expression_is_slow)
{
    static const char *const kSlow[] = {
        "(a*)*b",
        "(a+)+b",
        "(a|a)*b",
        "(a|aa)+$",
        "((a*)*)*b",
        "(.*)*.*.*.*b",
        "(a?){40}a{40}b",
        "(a{0,30}){0,30}b",
        "(x+x+)+y",
        "([a-z]+)*=",
        "(((((a{1,4}){1,4}){1,4}){1,4}){1,3})b",
    };
    for (size_t i = 0; i < sizeof kSlow / sizeof *kSlow; i++) {
        tsr_arena arena = {0};
        tsr_pattern pattern;
        tsr_err err;
        cr_assert_eq(compile(kSlow[i], &pattern, &arena, &err), TSR_OK, "%s: %s", kSlow[i], err.msg);
        uint64_t work[2] = {0};
        for (size_t k = 0; k < 2; k++) {
            const size_t length = k == 0 ? 500 : 1000;
            char *const name = repeated("", "a", length, "");
            cr_expect_eq(tsr_pattern_match(&pattern, name, &work[k]), strcmp(kSlow[i], "(a|aa)+$") == 0);
            cr_expect_leq(work[k], 4 * pattern.count * (length + 1), "%s", kSlow[i]);
            free(name);
        }
        cr_expect_leq(work[1], 2 * work[0] + 4 * pattern.count, "%s: %llu, then %llu", kSlow[i],
                      (unsigned long long)work[0], (unsigned long long)work[1]);
        tsr_arena_free(&arena);
    }
}

#define TEN "))))))))))"

/* Patterns that once filled memory or the stack are refused before expansion; repeated empty groups cost nothing. */
Test(pattern, nothing_grows_beyond_bounds)
{
    static const struct {
        const char *before, *what;
        size_t times;
        const char *after;
        bool refused;
    } kCases[] = {
        {"((((a{500}){500}){500}){500}){500}", "", 0, "", true},
        {"", "(", 100000, "", true},
        {"a", "{9}", 1000, "", true},
        {"(((((){999}){999}){999}){999}){999}a", "", 0, "", false},
        {"", "a", 1000000, "", true},
        {"", "a|", 500, "a", false},
        {"[", "a", 100000, "]", true},
        {"", "[a-z]", 10000, "", true},
        {"", "(", 32, "a" TEN TEN TEN "))", false},
        {"", "(", 33, "a" TEN TEN TEN ")))", true},
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        tsr_arena arena = {0};
        tsr_pattern pattern;
        tsr_err err;
        char *const text = repeated(kCases[i].before, kCases[i].what, kCases[i].times, kCases[i].after);
        cr_expect_eq(compile(text, &pattern, &arena, &err) != TSR_OK, kCases[i].refused, "case %zu: %s", i, err.msg);
        cr_expect_eq(tsr_pattern_match(&pattern, "a", NULL), !kCases[i].refused, "case %zu", i);
        cr_expect_leq(arena.bytes, 1 << 17);
        free(text);
        tsr_arena_free(&arena);
    }
}
