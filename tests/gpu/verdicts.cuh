/* Counts what a GPU test judged, and names each failure. Included once a program. */
#pragma once

#include <stdio.h>

static int checks, failures;

static void verdict(bool fine, const char *what, const char *detail)
{
    checks += 1;
    failures += !fine;
    if (!fine) {
        printf("FAILED %s %s\n", what, detail);
    }
}
