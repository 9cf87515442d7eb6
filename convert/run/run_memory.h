/* Declares how memory is divided among workers and shared reads. */
#pragma once

#include "convert/run/run_state.h"

/* Chooses the number of workers. The rest of the memory is for shared bytes. TSR_E_NOMEM: not even one worker fits. */
tsr_status tsr_pool_begin(tsr_pool *pool, const tsr_engine_job *jobs, tsr_err *err);

/* Lets the runs of this phase, and their sequences, share reads, if that saves any. */
void tsr_pool_share_reads(tsr_pool *pool);
