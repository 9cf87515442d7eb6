/* Declares how memory is divided among workers and shared reads. */
#ifndef TSR_CONVERT_RUN_RUN_MEMORY_H
#define TSR_CONVERT_RUN_RUN_MEMORY_H

#include "convert/run/run_state.h"

/* Chooses the number of workers. What they leave of the memory keeps what is shared. TSR_E_NOMEM: not one fits. */
tsr_status tsr_pool_begin(tsr_pool *pool, const tsr_engine_job *jobs, tsr_err *err) TSR_WARN_UNUSED;

/* Lets the runs that are present, and their sequences, share what they read, if that spares any reads. */
void tsr_pool_share_reads(tsr_pool *pool);

#endif
