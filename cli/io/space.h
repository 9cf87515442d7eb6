/* Estimates the disk space of an output before it is made. */
#pragma once

#include "convert/plan/plan.h"

#include <stdbool.h>

/* Prints the required space, and the free space at `dst` (NULL: unknown). */
void tsr_space_print(const tsr_plan *plan, const char *dst);

/* Prints the space that a spool needs, and the free space there. */
void tsr_space_print_spool(const tsr_plan *plan, const char *spool);

/* Checks that `dst` has room for what is left of the output of `plan`, and `later` for that of `next`, both of exact
 * size. TSR_E_NOSPACE: the message has the missing bytes. */
tsr_status tsr_space_check_both(const tsr_plan *plan, const char *dst, const tsr_plan *next, const char *later,
                                tsr_err *err);

/* Adds bytes_out_expected if bytes_out is an upper bound, for a dry run. */
void tsr_space_json(tsr_text *t, const tsr_plan *plan, bool dry_run);

/* Writes a warning to `text` if `dst` has less free space than the upper bound of the output. Returns false if there is
 * no warning. */
bool tsr_space_warning(const tsr_plan *plan, const char *dst, char *text, size_t size);
