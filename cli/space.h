/* The room that an output takes on its disk: what is told of it before it is made. */
#ifndef TSR_CLI_SPACE_H
#define TSR_CLI_SPACE_H

#include "convert/engine/plan.h"

#include <stdbool.h>

/* Prints what is needed, and free where `dst` is (NULL: nowhere yet). */
void tsr_space_print(const tsr_plan *plan, const char *dst);

/* Adds bytes_out_expected where bytes_out is a bound, for a dry run. */
void tsr_space_json(tsr_text *t, const tsr_plan *plan, bool dry_run);

/* A sentence for `text` where the upper bound of what will be written is not free at `dst`, although the job begins. */
bool tsr_space_warning(const tsr_plan *plan, const char *dst, char *text, size_t size);

#endif
