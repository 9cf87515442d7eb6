/* Declares steps and their units: how they begin, are computed, and end. */
#pragma once

#include "convert/run/run_state.h"

/* Begins a step, and the step whose outputs it coproduces. Called with the lock held. */
tsr_status tsr_run_begin_step(tsr_run *r, size_t index, tsr_err *err);

/* Counts a step as done, and the step whose outputs it coproduces. Called with the lock held. */
void tsr_run_count_step(tsr_run *r, size_t index);

/* Frees the state of a step, if it has begun. */
void tsr_run_free_step(tsr_run *r, size_t index);

/* Executes a unit in three parts: begins to read, computes and begins to write, counts it as done. Units of one worker
 * pass through each part in the order in which they were taken. */
tsr_status tsr_run_begin_unit(tsr_task *task, tsr_err *err);
tsr_status tsr_run_compute_unit(tsr_task *task, tsr_err *err);
tsr_status tsr_run_end_unit(tsr_task *task, tsr_err *err);
