/* Writes the requested results (--json and --junit) for every exit except that of an invalid command line.
 *
 * A dashboard that finds no file shows nothing, which looks like success. So a command that ends before it has a result
 * (bad input, no memory, no device, interrupted) writes one with the error. JUnit is made from the JSON by report/, so
 * that both agree. */
#pragma once

#include "cli/command.h"
#include "report/report.h"

/* Writes a complete result as JSON and JUnit XML where requested, and keeps it for a batch. */
tsr_status tsr_results_write(tsr_command_context *context, const tsr_text *text, tsr_err *err);

/* Appends the result of a command as a JSON document. */
void tsr_result_json(tsr_text *text, const tsr_command_context *context);

/* Writes the members judged and findings: the checks of a result and its findings. */
void tsr_checks_json(tsr_text *text, const tsr_result *result);

/* Reads the result of a command into the model of reports. tsr_report_free frees it. */
tsr_status tsr_result_report(tsr_report *report, const tsr_command_context *context, tsr_err *err);

/* Appends the result of a command that ended with an error before it had one. */
void tsr_error_json(tsr_text *text, const tsr_command *command, tsr_status status, const tsr_err *why);

/* Prints the error that the command ended with: "tessera: ..." on stderr and, for a usage error, where to read more.
 * Also writes it to the pending reports, unless the command line itself is invalid. */
void tsr_results_end(tsr_command_context *context);
