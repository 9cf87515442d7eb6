/* Runs a command: parse, check paths, enter the sandbox, open, run, print, write JSON. */
#pragma once

#include "cli/command.h"

/* Parses the command line and checks the paths, without reading any input. */
tsr_status tsr_command_validate(tsr_command_context *context, int argc, char **argv, tsr_err *err);

/* Runs a validated command: enters the sandbox, runs, and writes the result. */
tsr_status tsr_command_execute(tsr_command_context *context, tsr_err *err);

/* Validates and runs a command line. */
tsr_status tsr_command_run(tsr_command_context *context, int argc, char **argv, tsr_err *err);

/* Prints and writes the result of a finished job. */
tsr_status tsr_command_write_result(tsr_command_context *context, tsr_err *err);

/* Reports an error on stderr and in the pending reports, and returns the exit code. */
int tsr_command_end(tsr_command_context *context, tsr_status status, const tsr_err *err);
