/* Matches wildcards with one saved position for backtracking. */
#include "common/glob.h"

#include <stddef.h>
#include <string.h>

/* Characters after a star up to the next special one. */
typedef struct literal {
    const char *text;
    size_t size;
    bool last; /* the pattern ends after them */
} literal;

static literal literal_at(const char *pattern)
{
    const size_t size = strcspn(pattern, TSR_GLOB_SPECIAL);
    return (literal){pattern, size, pattern[size] == '\0'};
}

/* Returns where the pattern after a star can begin in [text, end), judged by its literal. NULL: nowhere. */
static const char *next_start(const literal *l, const char *text, const char *end, uint64_t *steps)
{
    if ((size_t)(end - text) < l->size)
        return NULL;
    if (l->last)
        return memcmp(end - l->size, l->text, l->size) == 0 ? end - l->size : NULL;
    if (l->size == 0)
        return text;
    for (const char *const stop = end - l->size + 1; (text = memchr(text, *l->text, (size_t)(stop - text))) != NULL;
         text++) {
        if (memcmp(text, l->text, l->size) == 0)
            return text;
        *steps += l->size / 8;
    }
    return NULL;
}

/* Returns true if the set after '[' at `set` contains the character. *end is after its ']', or NULL if it is not a
 * set. */
static bool in_set(const char *set, unsigned char c, const char **end)
{
    const bool negated = *set == '!';
    const char *p = set + negated;
    bool found = false;
    do {
        if (*p == '\0') {
            *end = NULL;
            return false;
        }
        const bool range = p[1] == '-' && p[2] != ']' && p[2] != '\0';
        const unsigned char first = (unsigned char)p[0], last = (unsigned char)p[range ? 2 : 0];
        found = found || (c >= first && c <= last);
        p += range ? 3 : 1;
    } while (*p != ']');
    *end = p + 1;
    return found != negated;
}

/* Returns true if the character matches the element at *pattern, which is not a star. Then advances *pattern past that
 * element. */
static bool fits_one(const char **pattern, char c, uint64_t *steps)
{
    const char *end = NULL;
    if (**pattern == '[' && in_set(*pattern + 1, (unsigned char)c, &end)) {
        *steps += (uint64_t)(end - *pattern);
        *pattern = end;
        return true;
    }
    if (end != NULL) {
        *steps += (uint64_t)(end - *pattern);
        return false;
    }
    const bool fits = **pattern == '?' || **pattern == c;
    *pattern += fits;
    return fits;
}

bool tsr_glob_match(const char *pattern, const char *text)
{
    uint64_t steps = 0;
    return tsr_glob_match_counting(pattern, text, &steps);
}

const char *tsr_glob_find(const char *const *patterns, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++) {
        if (tsr_glob_match(patterns[i], text))
            return patterns[i];
    }
    return NULL;
}

bool tsr_glob_match_counting(const char *pattern, const char *text, uint64_t *steps)
{
    const char *star = NULL, *resume = NULL;
    const char *const end = text + strlen(text);
    literal after_star = {0};
    for (; *text != '\0'; (*steps)++) {
        if (*pattern == '*') {
            star = ++pattern;
            resume = text;
            after_star = literal_at(star);
            if (*star == '\0')
                return true;
        } else if (*pattern != '\0' && fits_one(&pattern, *text, steps)) {
            text++;
            continue;
        } else if (star != NULL) {
            pattern = star;
            resume++;
        } else {
            return false;
        }
        const char *const from = resume;
        text = resume = next_start(&after_star, resume, end, steps);
        if (text == NULL)
            return false;
        *steps += (uint64_t)(text - from) / 8;
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}
