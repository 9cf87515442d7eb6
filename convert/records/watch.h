/* Checks that the source files have not changed since the plan was made. If a file were replaced while it is read, the
 * output would mix the weights of two models without any error. */
#pragma once

#include "convert/plan/plan.h"

typedef struct tsr_watch {
    size_t *first; /* [n_sources + 1]: global index of each source's first file */
    size_t *seen;  /* [first[n_sources]]: 1 + the output file for which it was last checked */
    bool *linked;  /* [first[n_sources]]: this run creates and removes hard links to it */
} tsr_watch;

/* Begins to watch. `whole` (NULL: none) are the output files that are made as hard links (links.h). */
tsr_status tsr_watch_begin(tsr_watch *watch, const tsr_plan *plan, const bool *whole, tsr_err *err);

/* Checks the source files of output `file`. TSR_E_IO: one has changed since it was opened; the message names it. */
tsr_status tsr_watch_check(tsr_watch *watch, const tsr_plan *plan, size_t file, tsr_err *err);

/* Checks the source files of all outputs. finished[n_files] becomes false for outputs made from a changed file. */
tsr_status tsr_watch_check_all(tsr_watch *watch, const tsr_plan *plan, bool *finished, tsr_err *err);

void tsr_watch_end(tsr_watch *watch);
