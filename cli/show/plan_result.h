/* Prints a plan or its result, and writes it as JSON. */
#pragma once

#include "cli/plan_job.h"

/* Prints the plan (--dry-run) or the result of running it. */
tsr_status tsr_plan_result_print(tsr_command_context *context, tsr_err *err);

/* Appends the same as members of a JSON object. */
void tsr_plan_result_json(const tsr_command_context *context, tsr_text *text);
