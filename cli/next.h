/* What to do with the result of a run: the last line of its summary. */
#ifndef TSR_CLI_NEXT_H
#define TSR_CLI_NEXT_H

#include "cli/job.h"
#include "convert/plan.h"

/* Prints "next: COMMAND", the plan's own or verify DST --against SRC, that a shell runs as it is printed; or, of a
 * single file without a configuration, what has to be written first. */
void tsr_print_next(const tsr_job *job, const tsr_plan *plan);

#endif
