/* Prints the command to run next, the last line of a summary. */
#ifndef TSR_CLI_HELP_NEXT_COMMAND_H
#define TSR_CLI_HELP_NEXT_COMMAND_H

#include "convert/plan/plan.h"

#include <stdbool.h>

/* Prints a word so that a shell takes it for one. */
void tsr_print_quoted(const char *word);

/* Prints a path so that a shell takes it for one word. */
void tsr_print_path(const char *path);

/* Prints "next: tessera diff A B --tensors NAME", quoted for a shell. */
void tsr_print_next_diff(const char *a, const char *b, const char *tensor);

/* Prints "next: COMMAND", with the plan's own command or verify DST --against SRC, in a form that a shell runs as it is
 * printed. For a single file without a configuration it says what has to be written first. `partial`: files of SRC were
 * left out. */
void tsr_print_next(const char *src, const char *dst, bool partial, const tsr_plan *plan);

#endif
