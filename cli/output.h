/* The only way to stdout and stderr: no name from a file can control the terminal, and no lost write goes unnoticed.
 *
 * Names of tensors and files, and strings of configurations, may hold anything: terminal escapes, newlines that forge a
 * line, bytes that are no UTF-8. Every %s that is printed here is made visible first (tsr_text_visible).
 * tests/check_layers.py sees to it that nothing else in cli/ prints. */
#ifndef TSR_CLI_OUTPUT_H
#define TSR_CLI_OUTPUT_H

#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum tsr_colour { TSR_UNCOLOURED, TSR_GOOD, TSR_BAD, TSR_NOTABLE } tsr_colour;

/* Opens /dev/null on descriptors 0 to 2 where they are closed, so that no file of a job becomes one of them, and has
 * writes fail where they would kill (SIGPIPE, SIGXFSZ). False when that is impossible. Call first in main. */
bool tsr_output_begin(void);

/* From here on nothing is printed or told: another process speaks for this one. */
void tsr_output_hush(void);

/* To stdout, and to stderr. As printf, but every %s is made visible; flags, width and precision hold as usual, and %s
 * is padded by characters. No %n, no long double, no wide characters. */
void tsr_print(const char *fmt, ...) TSR_PRINTF(1, 2);
void tsr_tell(const char *fmt, ...) TSR_PRINTF(1, 2);

/* A word in colour where stdout is a terminal (and NO_COLOR is not set), padded to `width` characters. */
void tsr_print_word(tsr_colour colour, const char *word, int width);

/* Text of our own to stdout as it stands: help, and JSON that is complete. */
void tsr_print_raw(const char *text, size_t size);

/* Flushes stdout and reports lost output. Returns the exit code for a command that ended with `code`. Call it last. */
int tsr_output_end(int code);

/* Whether descriptor `fd` is a terminal that takes colour. */
bool tsr_takes_colour(int fd);

/* How many characters a line of the terminal behind descriptor `fd` has. 0: it is none, or does not say. */
unsigned tsr_terminal_columns(int fd);

/* Exit code of a status: docs/exit-codes.md. */
int tsr_exit_code(tsr_status status);

/* The graver of two exit codes, where one command carries out several others: 130, 4, 5, 3, 2, 1, 0 in this order. */
int tsr_graver_code(int a, int b);

#endif
