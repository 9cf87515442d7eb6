/* Prints to stdout and stderr. Names from files cannot control the terminal, and a failed write is an error.
 *
 * Names of tensors and files, and strings of configurations, may contain anything: terminal escapes, newlines that
 * forge a line, invalid UTF-8. Every %s printed here is escaped first (tsr_text_visible). tests/check_layers.py checks
 * that nothing else in cli/ prints. */
#pragma once

#include "common/status.h"
#include "common/text.h"
#include "report/write/terminal/canvas.h"

#include <stdbool.h>
#include <stddef.h>

/* Opens /dev/null on descriptors 0 to 2 if they are closed, so that no file of a job gets these numbers. Ignores
 * SIGPIPE and SIGXFSZ, so that writes fail instead. Returns false if that is impossible. Must be called first in
 * main. */
bool tsr_output_begin(void);

/* Suppresses all output from now on: rank 0 prints for this process. */
void tsr_output_hush(void);

/* Print to stdout and stderr like printf, with every %s escaped. Flags, width and precision work as usual; %s is padded
 * by characters. No %n, no long double, no wide characters. */
void tsr_print(const char *fmt, ...) TSR_PRINTF(1, 2);
void tsr_print_stderr(const char *fmt, ...) TSR_PRINTF(1, 2);

/* Prints a word, in colour if stdout is a terminal and NO_COLOR is not set, padded to `width` characters. */
void tsr_print_word(tsr_ink ink, const char *word, int width);

/* Prints complete text of Tessera's own to stdout unchanged: help and JSON. */
void tsr_print_raw(const char *text, size_t size);

/* Prints text that report/write has drawn, with its names escaped, to stdout. Frees it. TSR_E_NOMEM: it is
 * incomplete. */
tsr_status tsr_print_drawn(tsr_text *text, tsr_err *err);

/* Returns the style of text that a command draws: lines of any width, in colour if stdout is a terminal. */
tsr_style tsr_command_style(void);

/* Flushes stdout and reports lost output. Returns the exit code for a command that ended with `code`. Must be called
 * last. */
int tsr_output_end(int code);

/* Returns true if descriptor `fd` is a terminal with colours. */
bool tsr_takes_colour(int fd);

/* Returns the line width of terminal `fd` in characters; 0: not a terminal, or unknown. */
unsigned tsr_terminal_columns(int fd);

/* Returns true if the locale of the environment has UTF-8. */
bool tsr_is_utf8_locale(void);

/* Returns the line width for stdout in characters: that of the terminal, from 60 to 120; 80 if it is not a terminal. */
unsigned tsr_line_width(void);

/* Returns the exit code of a status: docs/exit-codes.md. */
int tsr_exit_code(tsr_status status);

/* Returns the more severe of two exit codes, in the order 130, 4, 5, 3, 2, 1, 0. */
int tsr_graver_code(int a, int b);
