/* What to do with the result of a run: the last line of its summary. */
#ifndef TSR_CLI_NEXT_H
#define TSR_CLI_NEXT_H

#include "convert/engine/plan.h"

#include <stdbool.h>

/* Prints "next: COMMAND", the plan's own or verify DST --against SRC, that a shell runs as it is printed; or, of a
 * single file without a configuration, what has to be written first. `partial`: files of SRC were left out. */
void tsr_print_next(const char *src, const char *dst, bool partial, const tsr_plan *plan);

#endif
