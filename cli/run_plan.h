/* What all commands that carry out a plan share: the options of the machine and the destination, the plan printed and
 * carried out, the result told. */
#ifndef TSR_CLI_RUN_PLAN_H
#define TSR_CLI_RUN_PLAN_H

#include "cli/quant_limits.h"
#include "cli/shards.h"
#include "common/ranks.h"
#include "convert/engine/engine.h"
#include "convert/jobs/job_source.h"

#include <stdbool.h>
#include <stdint.h>

/* How a plan is to be carried out, as the command line says. */
typedef struct tsr_plan_run {
    const char *command; /* "quantize": for messages */
    const char *verb;    /* "quantizing": of progress */
    tsr_job_source from;
    const char *dst, *json, *junit;
    tsr_progress_options progress;
    uint64_t threads, cpumask, memory;
    int io;   /* a tsr_io_mode */
    int link; /* a tsr_link_mode */
    bool dry_run, force, quiet, help, mpi;
    double low_sqnr; /* dB: tensors below it are pointed out */
    tsr_quant_limits limits;
    tsr_shard_run shards;
    tsr_ranks *ranks; /* NULL: this process is alone */
    size_t beyond;    /* after tsr_run_plan: how many times a tensor is beyond the limits */
} tsr_plan_run;

/* With the defaults of this machine. */
tsr_plan_run tsr_plan_run_defaults(const char *command);

/* Puts the shared options behind the command's own. */
void tsr_plan_run_options(tsr_plan_run *run, tsr_option *options);

/* After parsing: SRC and DST are given, and the numbers make sense. `given`: which of the options were there. */
tsr_status tsr_plan_run_check(tsr_plan_run *run, const tsr_option *options, uint64_t given,
                              tsr_err *err) TSR_WARN_UNUSED;

/* Refuses outputs that would touch one of the `n` sources (NULL: none): tsr_places_check. */
tsr_status tsr_plan_run_places(const tsr_plan_run *run, const char *const *sources, size_t n,
                               tsr_err *err) TSR_WARN_UNUSED;

/* What speaks against carrying a plan out: limits that it has no use for, or nothing to quantize. */
tsr_status tsr_run_plan_check(const tsr_plan_run *run, const tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;

/* Tells what the plan warns of. */
void tsr_run_plan_warn(const tsr_plan_run *run, const tsr_plan *plan);

/* Tells the result of a plan that was carried out, as asked; `status` and *err say how that ended. */
tsr_status tsr_run_plan_tell(tsr_plan_run *run, const tsr_plan *plan, tsr_status status,
                             const tsr_engine_result *result, tsr_err *err) TSR_WARN_UNUSED;

/* Carries out the plan (or prints it: --dry-run), and tells the result as asked. */
tsr_status tsr_run_plan(tsr_plan_run *run, const tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;

#endif
