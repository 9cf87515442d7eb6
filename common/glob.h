/* Shell-like patterns over tensor and file names: '*' is any run of characters (dots and slashes too), '?' any one. */
#ifndef TSR_COMMON_GLOB_H
#define TSR_COMMON_GLOB_H

#include <stdbool.h>

/* Plain and linear in practice: planning asks this for every tensor and every rule, where fnmatch(3) takes too long. */
bool tsr_glob_match(const char *pattern, const char *text);

#endif
