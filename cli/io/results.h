/* Writes the results that a command was asked for, --json and --junit, on every exit but that of a wrong command line.
 *
 * A dashboard that finds no file shows nothing, and nothing looks like nothing wrong. So a command that ends before it has a result
 * (bad input, no memory, no device, interrupted) leaves one that holds the error instead. JUnit is made from the JSON by report/, so
 * that both agree. */
#ifndef TSR_CLI_IO_RESULTS_H
#define TSR_CLI_IO_RESULTS_H

#include "cli/command.h"

/* Writes a finished result as JSON and JUnit XML, each where it was asked for, and keeps it for a batch. */
tsr_status tsr_results_write(tsr_command_context *context, const tsr_text *text, tsr_err *err) TSR_WARN_UNUSED;

/* Appends the result of a command that an error ended before it had one. */
void tsr_error_json(tsr_text *text, const tsr_command *command, tsr_status status, const tsr_err *why);

/* Prints the error that the command ended with: "tessera: ..." on stderr and, for a usage error, where to read more. The error also
 * becomes the pending reports, unless the command line itself is wrong. */
void tsr_results_end(tsr_command_context *context);

#endif
