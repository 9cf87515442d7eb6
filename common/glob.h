/* Shell-like patterns for tensor and file names, with the syntax of Python's fnmatch: '*' matches any run of characters
 * (including dots and slashes), '?' any single one, "[0-3x]" one of a set, "[!0-3]" one outside of it. A ']' that comes
 * first belongs to the set. A '[' without an end is an ordinary character. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The characters that make a name a pattern. */
#define TSR_GLOB_SPECIAL "*?["

/* Explains globs in messages about a glob that matches nothing. */
#define TSR_GLOB_HELP "a GLOB may contain *, ? and sets such as [0-3]; 'tessera help --tensors SRC' lists the names"

/* Matches in linear time in practice. Planning calls it for every tensor and every rule, for which fnmatch(3) is too
 * slow. */
bool tsr_glob_match(const char *pattern, const char *text);

/* Returns the first of n patterns that matches; NULL: none. */
const char *tsr_glob_find(const char *const *patterns, size_t n, const char *text);

/* The same as tsr_glob_match, and adds the work to *steps: one for each character that was compared, in the text or in a
 * set, and for every eight that were skipped. */
bool tsr_glob_match_counting(const char *pattern, const char *text, uint64_t *steps);
