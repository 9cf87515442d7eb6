/* Declares the statistics of single blocks of a running step. */
#pragma once

#include "convert/run/run_state.h"

/* Allocates the block statistics, if the step has them. */
tsr_status tsr_run_begin_blocks(tsr_run *r, size_t index, tsr_err *err);
void tsr_run_free_blocks(tsr_step_state *step);

/* Makes a frame of the collected statistics. r->rows.stats[index] must be set. */
tsr_status tsr_run_end_blocks(tsr_run *r, size_t index, tsr_err *err);

/* Writes the frames of a file's steps, before the journal records the file. */
tsr_status tsr_run_keep_blocks(tsr_run *r, size_t file, tsr_err *err);
