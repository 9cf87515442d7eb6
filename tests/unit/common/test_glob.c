/* Shell-like patterns over names. */
#include "common/glob.h"

#include <criterion/criterion.h>

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

/* By the definition of a star: it fits nothing, or one more character. */
static bool fits(const char *pattern, const char *text)
{
    if (*pattern == '\0')
        return *text == '\0';
    if (*pattern == '*')
        return fits(pattern + 1, text) || (*text != '\0' && fits(pattern, text + 1));
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

Test(glob, matches_as_defined_on_all_short_texts)
{
    enum { PATTERNS = 1 + 4 + 16 + 64 + 256 + 1024, TEXTS = 1 + 2 + 4 + 8 + 16 + 32 + 64 };
    for (unsigned i = 0; i < PATTERNS; i++) {
        char pattern[8], text[8];
        spell(i, "ab?*", 4, pattern);
        for (unsigned k = 0; k < TEXTS; k++) {
            spell(k, "ab", 2, text);
            cr_assert_eq(tsr_glob_match(pattern, text), fits(pattern, text), "'%s' on '%s'", pattern, text);
        }
    }
}
