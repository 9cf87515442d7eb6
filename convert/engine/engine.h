/* Carries out any plan.
 *
 * Workers take units in the plan's order; each reads, computes and writes, so that one worker's disk time is another's
 * arithmetic. A file is written under a temporary name (DST/.tessera/N.part); when its last unit is done it is fsynced,
 * renamed and recorded in the journal (DST/.tessera/journal) with a digest of its bytes. The texts come last, and
 * config.json is the last of them. A rerun of the same plan reads the files that the journal names, compares digests,
 * and makes what is missing.
 *
 * The same plan gives the same bytes for any number of threads, any instruction set and any interruption. */
#ifndef TSR_CONVERT_ENGINE_ENGINE_H
#define TSR_CONVERT_ENGINE_ENGINE_H

#include "common/threads.h"
#include "convert/engine/plan.h"

typedef struct tsr_engine_options {
    tsr_run_options run; /* its progress counts what steps make, without side files */
    bool force;          /* start over, whatever the destination holds */
    unsigned cpu_flags;  /* for tsr_cpu_kernels_init */
} tsr_engine_options;

typedef struct tsr_engine_result {
    bool already_complete;  /* nothing was left to do: the output was verified */
    uint64_t files_resumed; /* found finished, and verified */
    uint64_t files_redone;  /* journalled as finished, but gone, or their digest differs: made again */
    uint64_t bytes_read, bytes_written;
    double seconds;
    unsigned threads;      /* how many ran */
    tsr_quant_stats *rows; /* [plan->n_steps]; freed by tsr_engine_result_free */
} tsr_engine_result;

/* Carries out the plan in directory `dst`, which is made if need be.
 * TSR_E_EXISTS: dst holds files that no run of Tessera put there, or a run with other options. TSR_E_MISMATCH: a run
 * from a source that has changed since.
 * TSR_E_IO: among others, a source file that changed while it was read.
 * TSR_E_NOSPACE: with the number of bytes that are missing. TSR_E_NOMEM: --memory too small, with what is needed.
 * TSR_E_CANCELLED: stopped by *run.cancel; the state can be resumed, as after any other failure. */
tsr_status tsr_engine_run(const tsr_plan *plan, const char *dst, const tsr_engine_options *options,
                          tsr_engine_result *result, tsr_err *err) TSR_WARN_UNUSED;

void tsr_engine_result_free(tsr_engine_result *result);

#endif
