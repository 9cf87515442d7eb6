/* Several processes, on one machine or many, that carry out one plan together on a file system that all of them see.
 *
 * Rank 0 runs the engine as it always does: it schedules, opens and commits files, keeps the journal and sums up. For each
 * thread of another rank it has a worker of its own that takes a unit as any worker does, sends its number there, and gets
 * back what it came to: the other rank reads the source, computes, and writes the unit's output into the file, which it opens by
 * its name. So the order of things, and every byte, are those of one process. Before rank 0 makes a file durable, every rank that
 * wrote to it has synced its own descriptor: on a network file system, an fsync elsewhere does not cover that. */
#ifndef TSR_CONVERT_ENGINE_RANKS_H
#define TSR_CONVERT_ENGINE_RANKS_H

#include "common/threads.h"
#include "convert/engine/plan.h"
#include "convert/engine/transport.h"

typedef struct tsr_ranks tsr_ranks;

/* Joins the processes that mpirun has started. TSR_E_UNSUPPORTED: there is no MPI. */
tsr_status tsr_ranks_begin(tsr_ranks **ranks, tsr_err *err) TSR_WARN_UNUSED;

unsigned tsr_ranks_mine(const tsr_ranks *ranks);
unsigned tsr_ranks_count(const tsr_ranks *ranks);

/* All ranks tell each other how they fared so far, `status` with *err, and what their plan is (NULL after a failure). Returns
 * to all of them the first failure, with its rank's host; TSR_E_MISMATCH where plans differ. `options` say what this rank may
 * use. */
tsr_status tsr_ranks_agree(tsr_ranks *ranks, tsr_status status, const tsr_plan *plan, const tsr_run_options *options,
                           tsr_err *err) TSR_WARN_UNUSED;

/* Of a rank but 0, once they agree: carries out units until rank 0 has no more. `dst` is the directory as this rank sees it. */
tsr_status tsr_ranks_serve(tsr_ranks *ranks, const tsr_plan *plan, const char *dst, unsigned cpu_flags,
                           tsr_err *err) TSR_WARN_UNUSED;

/* Lets all ranks end, and waits for them. NULL is fine. */
void tsr_ranks_end(tsr_ranks *ranks);

#endif
