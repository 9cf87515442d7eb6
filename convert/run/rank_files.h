/* Declares how ranks divide the files of a run and combine their results. Without ranks these functions do nothing. */
#pragma once

#include "convert/run/run_state.h"

/* Gives every rank the other ranks' records of finished files. */
tsr_status tsr_run_share_journal(tsr_run *r, tsr_err *err);

/* Claims files in order, up to this one, to decide whether this rank makes it. Called with the lock held. */
void tsr_run_claim_files(tsr_run *r, size_t file);

/* Notes, after a phase, which files this rank has verified or made. */
void tsr_run_note_done(tsr_run *r);

/* After verifying: gives every rank the list of the files that match the journal. */
tsr_status tsr_run_combine_verified(tsr_run *r, tsr_err *err);

/* After converting: gives every rank the digests, statistics and counts of all. */
tsr_status tsr_run_combine_outputs(tsr_run *r, tsr_engine_result *result, tsr_err *err);
