/* Writes to stdout and stderr. No name from a file can control the terminal, and a lost write is an error.
 *
 * Names of tensors and files, and strings of configurations, may hold anything: terminal escapes, newlines that forge a
 * line, bytes that are no UTF-8. Every %s that is printed here is made visible first (tsr_text_visible).
 * tests/check_layers.py sees to it that nothing else in cli/ prints. */
#ifndef TSR_CLI_IO_OUTPUT_H
#define TSR_CLI_IO_OUTPUT_H

#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum tsr_colour { TSR_UNCOLOURED, TSR_GOOD, TSR_BAD, TSR_NOTABLE } tsr_colour;

/* Opens /dev/null on descriptors 0 to 2 where they are closed, so that no file of a job becomes one of them, and has
 * writes fail where they would kill (SIGPIPE, SIGXFSZ). False when that is impossible. Call first in main. */
bool tsr_output_begin(void);

/* Suppresses all output from now on: rank 0 prints for this process. */
void tsr_output_hush(void);

/* Print to stdout and stderr. As printf, but every %s is made visible; flags, width and precision hold as usual, and %s
 * is padded by characters. No %n, no long double, no wide characters. */
void tsr_print(const char *fmt, ...) TSR_PRINTF(1, 2);
void tsr_print_stderr(const char *fmt, ...) TSR_PRINTF(1, 2);

/* Prints a word, in colour where stdout is a terminal and NO_COLOR is not set, padded to `width` characters. */
void tsr_print_word(tsr_colour colour, const char *word, int width);

/* Prints complete text of our own to stdout unchanged: help and JSON. */
void tsr_print_raw(const char *text, size_t size);

/* Flushes stdout and reports lost output. Returns the exit code for a command that ended with `code`. Call it last. */
int tsr_output_end(int code);

/* Returns true if descriptor `fd` is a terminal that takes colour. */
bool tsr_takes_colour(int fd);

/* Returns how many characters a line of terminal `fd` has. 0: it is no terminal, or the width is unknown. */
unsigned tsr_terminal_columns(int fd);

/* Returns how many characters a line on stdout may have: the terminal's width, from 60 to 120; 80 if it is no terminal. */
unsigned tsr_line_width(void);

/* Returns the exit code of a status: docs/exit-codes.md. */
int tsr_exit_code(tsr_status status);

/* Returns the graver of two exit codes, in the order 130, 4, 5, 3, 2, 1, 0. */
int tsr_graver_code(int a, int b);

#endif
