/* The results that a command was asked for, --json and --junit: written on every exit but that of a wrong command line.
 *
 * A dashboard that finds no file shows nothing, and nothing looks like nothing wrong. So a command that ends before it has
 * a result (bad input, no memory, no device, interrupted) leaves one that holds the error instead. JUnit is made from the
 * JSON by report/, so that both say the same. */
#ifndef TSR_CLI_RESULTS_H
#define TSR_CLI_RESULTS_H

#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>

/* Writes a finished result to `json`, and what it says as JUnit XML to `junit`, each where it is not NULL. */
tsr_status tsr_results_write(const char *json, const char *junit, const tsr_text *text, tsr_err *err) TSR_WARN_UNUSED;

/* The result that a command ("verify gemm") leaves which an error ended before it had one. */
void tsr_error_json(tsr_text *text, const char *command, tsr_status status, const tsr_err *why);

/* How every command ends: prints "tessera: ..." to stderr and, for a usage error, where to read more; nothing for TSR_OK.
 * The error also becomes the result that `command` ("verify gemm") still owes, unless the command line itself is wrong.
 * Returns the exit code (docs/exit-codes.md). `fine` says whether what was checked passed. */
int tsr_end(const char *command, tsr_status status, bool fine, const tsr_err *err);

#endif
