/* Makes long texts for tests: one text that is repeated between two others. */
#pragma once

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* From malloc. */
static inline char *repeated(const char *before, const char *what, size_t times, const char *after)
{
    char *const text = malloc(strlen(before) + strlen(what) * times + strlen(after) + 1);
    cr_assert_not_null(text);
    char *to = stpcpy(text, before);
    for (size_t i = 0; i < times; i++)
        to = stpcpy(to, what);
    strcpy(to, after);
    return text;
}
