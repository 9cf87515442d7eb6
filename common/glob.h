/* Shell-like patterns over tensor and file names: '*' is any run of characters (dots and slashes too), '?' any one. */
#ifndef TSR_COMMON_GLOB_H
#define TSR_COMMON_GLOB_H

#include <stdbool.h>
#include <stdint.h>

/* Linear in practice. Planning calls it for every tensor and every rule, for which fnmatch(3) is too slow. */
bool tsr_glob_match(const char *pattern, const char *text);

/* The same, and adds what it took to *steps: one for each letter that was compared, and for eight that were passed over. */
bool tsr_glob_match_counting(const char *pattern, const char *text, uint64_t *steps);

#endif
