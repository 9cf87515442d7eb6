/* Declares the steps of a run that differ between one process, a shard, and joining shards. */
#pragma once

#include "convert/run/run_state.h"

/* Computes which shard makes each file, if there are shards. */
tsr_status tsr_run_divide(tsr_run *r, tsr_err *err);

/* Opens the journal of all files, of a shard or a rank, or the one in which shards are joined. */
tsr_status tsr_run_open_journal(tsr_run *r, tsr_err *err);

/* Called before shards are joined: TSR_E_NOTHING unless all files are finished. */
tsr_status tsr_run_check_shards(tsr_run *r, tsr_err *err);

/* Returns the error of a run that has files to make but cannot write. */
tsr_status tsr_run_refuse_writing(const tsr_run *r, tsr_err *err);

/* Checks that there is room for what this run makes and for `promised` bytes of others. */
tsr_status tsr_run_check_space(const tsr_run *r, uint64_t promised, tsr_err *err);

/* Completes the message of a run that had no space left: tsr_explain_no_space. */
tsr_status tsr_run_explain_no_space(const tsr_run *r, tsr_err *err);

/* Writes what follows the last file: the journal of all files, block statistics, texts. A shard writes none of it. */
tsr_status tsr_run_finish(tsr_run *r, tsr_err *err);
