/* How a job is asked for, in words that a manifest keeps: so that whoever has the source can make the same bytes again. */
#ifndef TSR_CONVERT_JOBS_MADE_WITH_H
#define TSR_CONVERT_JOBS_MADE_WITH_H

#include "convert/engine/plan.h"
#include "convert/jobs/job_source.h"

/* Spells what is said other than by default: `said` and `unsaid` are the job's table of options, filled by a job and by one of which
 * nothing is said. Of paths only the last name is kept; files of options are digested, and small ones kept. The strings are in
 * `arena`. */
tsr_status tsr_made_with_note(tsr_plan_made_with *with, const char *command, const tsr_job_source *from,
                              const tsr_option *said, const tsr_option *unsaid, tsr_arena *arena,
                              tsr_err *err) TSR_WARN_UNUSED;

#endif
