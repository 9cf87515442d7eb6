/* Carries out a command: parse, check paths, enter the sandbox, open, run, print, write JSON. */
#ifndef TSR_CLI_RUNNER_H
#define TSR_CLI_RUNNER_H

#include "cli/command.h"

/* Parses, and checks the paths: all that can be known before a byte is read. */
tsr_status tsr_command_validate(tsr_command_context *context, int argc, char **argv, tsr_err *err) TSR_WARN_UNUSED;

/* Carries out a command that was validated: enters the sandbox, runs, and writes the result. */
tsr_status tsr_command_execute(tsr_command_context *context, tsr_err *err) TSR_WARN_UNUSED;

/* Validates and executes a command line. */
tsr_status tsr_command_run(tsr_command_context *context, int argc, char **argv, tsr_err *err) TSR_WARN_UNUSED;

/* Prints and writes the result of a job that has run. */
tsr_status tsr_command_write_result(tsr_command_context *context, tsr_err *err) TSR_WARN_UNUSED;

/* Reports an error on stderr and in the pending reports, and returns the exit code. */
int tsr_command_end(tsr_command_context *context, tsr_status status, const tsr_err *err);

#endif
