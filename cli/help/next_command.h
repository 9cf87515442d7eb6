/* Prints the command to run next, the last line of a summary. */
#pragma once

#include "convert/plan/plan.h"

#include <stdbool.h>

/* Prints a string so that a shell reads it as one word. */
void tsr_print_quoted(const char *word);

/* Prints a path so that a shell reads it as one word. */
void tsr_print_path(const char *path);

/* Prints "next: tessera diff A B --tensors NAME", quoted for a shell. */
void tsr_print_next_diff(const char *a, const char *b, const char *tensor);

/* Prints "next: COMMAND" in a form that can be pasted into a shell: the plan's own command, or verify DST --against
 * SRC. For a single file without a configuration, it names the file that must be written first. `partial`: files of SRC
 * were left out. */
void tsr_print_next(const char *src, const char *dst, bool partial, const tsr_plan *plan);
