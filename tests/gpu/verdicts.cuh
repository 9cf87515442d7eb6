/* Counts what a GPU test judged, and names each failure. Included once a program. */
#pragma once

#include <stdio.h>

static int checks, failures;

static inline void verdict(bool fine, const char *what, const char *detail)
{
    checks += 1;
    failures += !fine;
    if (!fine) {
        printf("FAILED %s %s\n", what, detail);
    }
}

/* Prints 'N checks, N failed'. Returns the exit code. */
static int conclude(void)
{
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0 || checks == 0;
}
