/* Implements the part of Criterion's redirection that the unit tests use: stdout of a test goes to an unnamed file. */
#pragma once

#include "criterion/criterion.h"

static FILE *unit_stdout;

static inline void cr_redirect_stdout(void)
{
    unit_stdout = tmpfile();
    cr_assert(unit_stdout != NULL && dup2(fileno(unit_stdout), STDOUT_FILENO) == STDOUT_FILENO);
}

static inline bool unit_printed(const char *wanted)
{
    char text[1 << 16];
    fflush(stdout);
    rewind(unit_stdout);
    text[fread(text, 1, sizeof text - 1, unit_stdout)] = '\0';
    return strcmp(text, wanted) == 0;
}

#define cr_assert_stdout_eq_str(text, ...) UNIT_ASSERT(unit_printed(text), "stdout is " #text, __VA_ARGS__)
