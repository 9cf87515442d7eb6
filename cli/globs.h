/* Globs of a command line that fit nothing, which are mostly misspelt: a line on stderr for each. Plans warn of their own. */
#ifndef TSR_CLI_GLOBS_H
#define TSR_CLI_GLOBS_H

#include "common/options.h"
#include "formats/checkpoint/checkpoint.h"

#include <stddef.h>

/* The i-th name that a glob may fit. */
typedef const char *tsr_glob_name_fn(const void *context, size_t i);

/* Of --tensors, with n names to fit. Where none of the globs fits, nothing is told: that ends the command, in words of its own. */
void tsr_tell_unfit_tensors(const tsr_list *globs, tsr_glob_name_fn *name, const void *context, size_t n);

/* Of --ignore-file, with which the checkpoint was opened. */
void tsr_tell_unfit_files(const tsr_list *globs, const tsr_checkpoint *checkpoint);

#endif
