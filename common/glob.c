/* Wildcard matching with one saved position to return to. */
#include "common/glob.h"

#include <stddef.h>
#include <string.h>

/* Where what follows a star can begin in the text: its first character says so, if it is none that fits any. NULL: nowhere. */
static const char *next_start(const char *pattern, const char *text)
{
    return *pattern == '*' || *pattern == '?' ? text : strchr(text, *pattern);
}

bool tsr_glob_match(const char *pattern, const char *text)
{
    uint64_t steps = 0;
    return tsr_glob_match_counting(pattern, text, &steps);
}

bool tsr_glob_match_counting(const char *pattern, const char *text, uint64_t *steps)
{
    const char *star = NULL, *resume = NULL;
    for (; *text != '\0'; (*steps)++) {
        if (*pattern == '*') {
            star = ++pattern;
            resume = text;
            if (*star == '\0')
                return true;
        } else if (*pattern == '?' || *pattern == *text) {
            pattern++;
            text++;
            continue;
        } else if (star != NULL) {
            pattern = star;
            resume++;
        } else {
            return false;
        }
        const char *const from = resume;
        text = resume = next_start(star, resume);
        if (text == NULL)
            return false;
        *steps += (uint64_t)(text - from) / 8;
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}
