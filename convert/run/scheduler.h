/* Declares the scheduler, which assigns units and files to commit.
 *
 * Units of a sequence are assigned in the plan's order. Among sequences that read the same source, the one with the
 * lowest source position is next, so that all of them advance through the source together and share reads. A sequence
 * that waits for something of its own (an amax, a file to be committed) lets others go ahead. */
#pragma once

#include "convert/run/run_state.h"

/* Lays out the sequences of a phase. */
void tsr_schedule_begin(tsr_run *r);

/* Takes a unit of any sequence. Returns false if none is left, or if none is ready and `wait` is false. */
bool tsr_schedule_unit(tsr_pool *pool, tsr_work *w, bool wait);

/* Returns the first sequence whose next file to commit is complete, or NULL. Sets *over if there will be none. Called
 * with the lock held. */
tsr_file_sequence *tsr_schedule_commit(tsr_run *r, bool *over);
