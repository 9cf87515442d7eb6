/* Commits the fault that its argument names, to test that the sanitizers report it. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    volatile int one = 1;
    char *volatile block = malloc(16);
    if (block == NULL)
        return 4;
    if (strcmp(what, "leaks") == 0)
        block = NULL;
    else if (strcmp(what, "reads-beyond") == 0)
        one = block[15 + one];
    else if (strcmp(what, "overflows") == 0)
        one = INT_MAX - 1 + one + one;
    else if (strcmp(what, "spins") == 0)
        while (one > 0)
            ;
    free(block);
    fputs("to stderr\n", stderr);
    return puts(what) < 0 || fclose(stdout) != 0;
}
