/* Declares the workers, which carry out several runs, and several sequences of a run, at a time. */
#ifndef TSR_CONVERT_RUN_WORKERS_H
#define TSR_CONVERT_RUN_WORKERS_H

#include "convert/run/run_state.h"

/* Carries out the units of all runs that are present and commits their files. Returns when none is left. The failure of each
 * run says how it ended. */
void tsr_workers_run(tsr_pool *pool, const char *phase);

#endif
