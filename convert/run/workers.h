/* Declares the workers, which execute several runs, and several sequences of a run, at the same time. */
#pragma once

#include "convert/run/run_state.h"

/* Executes the units of all runs of this phase and commits their files. Returns when none is left. The `failure` of
 * each run has its result. */
void tsr_workers_run(tsr_pool *pool, const char *phase);
