/* Rejects globs of a command line that match nothing, which usually are misspelt. Plans check their own globs. */
#pragma once

#include "cli/command.h"
#include "formats/checkpoint/checkpoint.h"

#include <stddef.h>

/* Returns the i-th name that a glob may match. */
typedef const char *tsr_glob_name_fn(const void *context, size_t i);

/* Rejects a glob among the values of --tensors that matches none of n names: TSR_E_USAGE. */
tsr_status tsr_check_tensor_globs(const char *const *globs, size_t n_globs, tsr_glob_name_fn *name, const void *context,
                                  size_t n, tsr_err *err);

/* Warns about each --ignore-file of the checkpoint that matches no file. */
void tsr_warn_unfit_files(const tsr_command_context *context, const tsr_checkpoint *checkpoint);
