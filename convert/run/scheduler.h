/* Declares the scheduler, which hands out units and files to commit.
 *
 * Each sequence hands out its units in the plan's order. Among sequences that read the same source, the one that is furthest behind
 * in it comes next, so that all of them go through the source side by side, and bytes that were read for one are there for
 * the others. A sequence that waits for something of its own (an amax, a file to be committed) lets others go ahead. */
#ifndef TSR_CONVERT_RUN_SCHEDULER_H
#define TSR_CONVERT_RUN_SCHEDULER_H

#include "convert/run/run_state.h"

/* Lays out the sequences of a phase. */
void tsr_schedule_begin(tsr_run *r);

/* Takes a unit of any sequence. Returns false when none is left, or when none is available now and `wait` is false. */
bool tsr_schedule_unit(tsr_pool *pool, tsr_work *w, bool wait);

/* Returns the first sequence whose next file to be committed is whole. NULL: none is. *over: none will be. Called with the lock
 * held. */
tsr_file_sequence *tsr_schedule_commit(tsr_run *r, bool *over);

#endif
