/* Declares the pass that computes the largest |x| of whole tensors. */
#pragma once

#include "convert/run/run_state.h"

/* Schedules the units of an amax, unless another step has requested it before. */
void tsr_run_want_amax(tsr_run *r, const tsr_amax *amax);

/* Returns the bytes to read for an amax: 0 if there is none or it has been counted before. */
uint64_t tsr_run_count_amax(tsr_run *r, const tsr_amax *amax);

/* Finds the next unit of an amax that some step needs, in the plan's order. Returns false when all are taken. Called
 * with the lock held. */
bool tsr_run_next_amax(tsr_run *r, size_t *index, uint64_t *unit);

/* Begins to read the input of a unit. */
tsr_status tsr_run_begin_amax(tsr_task *task, tsr_err *err);

/* Adds the largest |x| of a unit to the amax. TSR_E_VALUE, with its place, for NaN or Inf. */
tsr_status tsr_run_compute_amax(tsr_task *task, tsr_err *err);
