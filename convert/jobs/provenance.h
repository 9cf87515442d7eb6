/* Records the options of a job in the manifest, so that the output can be reproduced from the same source. */
#pragma once

#include "convert/jobs/job_source.h"
#include "convert/plan/plan.h"

/* Lists the options that differ from their defaults. `given` and `defaults` are the same option table, bound to the job
 * and to a default job. Only the last component of a path is kept. Files named by options are digested, and small ones
 * are kept. The strings are in `arena`. */
tsr_status tsr_provenance_note(tsr_plan_provenance *with, const char *command, const tsr_job_source *from,
                               const tsr_option *given, const tsr_option *defaults, tsr_arena *arena, tsr_err *err);

/* Adds a source that is given by its place on the command line: the last component of its path and `ending` as the word
 * `at`, and its file `file`, which is digested, under the name `option`. */
tsr_status tsr_provenance_add_source(tsr_plan_provenance *with, const char *option, size_t at,
                                     const tsr_checkpoint *source, const char *ending, const char *file,
                                     tsr_arena *arena, tsr_err *err);
