/* Estimates the disk space of an output before it is made. */
#ifndef TSR_CLI_IO_SPACE_H
#define TSR_CLI_IO_SPACE_H

#include "convert/plan/plan.h"

#include <stdbool.h>

/* Prints the space that is needed, and that is free at `dst` (NULL: not known yet). */
void tsr_space_print(const tsr_plan *plan, const char *dst);

/* Adds bytes_out_expected where bytes_out is a bound, for a dry run. */
void tsr_space_json(tsr_text *t, const tsr_plan *plan, bool dry_run);

/* Writes a warning into `text` if the upper bound of the output is not free at `dst`. False: there is nothing to warn of. */
bool tsr_space_warning(const tsr_plan *plan, const char *dst, char *text, size_t size);

#endif
