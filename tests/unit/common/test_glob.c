/* Tests shell patterns for names (common/glob.h). */
#include "common/glob.h"

#include <criterion/criterion.h>
#include <string.h>

Test(glob, matches)
{
    cr_expect(tsr_glob_match("*.gate.weight", "model.layers.3.mlp.gate.weight"));
    cr_expect(!tsr_glob_match("*.gate.weight", "model.layers.3.mlp.gate_proj.weight"));
    cr_expect(tsr_glob_match("a*b*c", "aXbYbZc"));
    cr_expect(!tsr_glob_match("a*b*c", "aXbYbZ"));
    cr_expect(tsr_glob_match("?_proj", "q_proj"));
    cr_expect(!tsr_glob_match("", "x"));
    cr_expect(tsr_glob_match("**", ""));
}

Test(glob, sets)
{
    cr_expect(tsr_glob_match("model.layers.[0-1].*", "model.layers.1.mlp.up_proj.weight"));
    cr_expect(!tsr_glob_match("model.layers.[0-1].*", "model.layers.2.mlp.up_proj.weight"));
    cr_expect(!tsr_glob_match("model.layers.[0-1].*", "model.layers.10.mlp.up_proj.weight"));
    cr_expect(tsr_glob_match("*.[!0-8].*", "layers.9.x") && !tsr_glob_match("*.[!0-8].*", "layers.8.x"));
    cr_expect(tsr_glob_match("*.gat[e]", "mlp.gate") && !tsr_glob_match("*.gat[e]", "mlp.gat[e]"));
    cr_expect(tsr_glob_match("*[]-]", "a]") && tsr_glob_match("*[]-]", "a-") && !tsr_glob_match("[]-]", "["));
    cr_expect(tsr_glob_match("a[b", "a[b") && tsr_glob_match("*[b", "a[b") && !tsr_glob_match("a[b", "ab"));
    cr_expect(tsr_glob_match("[\x80-\xff]", "\xc3") && !tsr_glob_match("[a-\xff]", "A"));
}

/* Returns the length of the set that begins at '[', up to the first ']' after its first character; 0: it is not a
 * set. */
static size_t set_length(const char *set)
{
    const size_t first = set[1] == '!' ? 2 : 1;
    const char *const end = set[first] == '\0' ? NULL : strchr(set + first + 1, ']');
    return end == NULL ? 0 : (size_t)(end - set) + 1;
}

static bool set_has(const char *set, size_t n, char c)
{
    const bool negated = set[1] == '!';
    bool found = false;
    for (size_t i = negated ? 2 : 1; i < n - 1; i++) {
        const bool range = i + 2 < n - 1 && set[i + 1] == '-';
        found = found || (range ? c >= set[i] && c <= set[i + 2] : c == set[i]);
        i += range ? 2 : 0;
    }
    return found != negated;
}

/* Matches by the definition of a star: it matches nothing, or one more character. */
static bool fits(const char *pattern, const char *text)
{
    if (*pattern == '\0')
        return *text == '\0';
    if (*pattern == '*')
        return fits(pattern + 1, text) || (*text != '\0' && fits(pattern, text + 1));
    const size_t set = *pattern == '[' ? set_length(pattern) : 0;
    if (set > 0)
        return *text != '\0' && set_has(pattern, set, *text) && fits(pattern + set, text + 1);
    return *text != '\0' && (*pattern == '?' || *pattern == *text) && fits(pattern + 1, text + 1);
}

/* Writes the number in base n as a text of these n letters. */
static void spell(unsigned number, const char *letters, unsigned n, char text[8])
{
    size_t size = 0;
    for (; number > 0; number = (number - 1) / n)
        text[size++] = letters[(number - 1) % n];
    text[size] = '\0';
}

/* Compares all of the first patterns with all of the first texts over another alphabet. */
static void compare(unsigned patterns, const char *of_patterns, unsigned texts, const char *of_texts)
{
    for (unsigned i = 0; i < patterns; i++) {
        char pattern[8], text[8];
        spell(i, of_patterns, (unsigned)strlen(of_patterns), pattern);
        for (unsigned k = 0; k < texts; k++) {
            spell(k, of_texts, (unsigned)strlen(of_texts), text);
            cr_assert_eq(tsr_glob_match(pattern, text), fits(pattern, text), "'%s' on '%s'", pattern, text);
        }
    }
}

Test(glob, matches_as_defined_on_all_short_texts)
{
    compare(1 + 4 + 16 + 64 + 256 + 1024, "ab?*", 1 + 2 + 4 + 8 + 16 + 32 + 64, "ab");
}

Test(glob, sets_match_as_defined_on_all_short_texts)
{
    compare((7 * 7 * 7 * 7 * 7 * 7 - 1) / 6, "ab*[]!-", (5 * 5 * 5 * 5 - 1) / 4, "ab[]-");
}
