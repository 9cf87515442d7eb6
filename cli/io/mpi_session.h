/* Joins the processes that mpirun started for one command (--mpi). Only rank 0 prints and writes results. */
#pragma once

#include "cli/io/common_options.h"
#include "common/cluster/ranks.h"

/* Rejects a process that mpirun or srun started with others, without --mpi: TSR_E_USAGE. `instead` is the remedy. */
tsr_status tsr_check_alone(const char *instead, tsr_err *err);

/* Joins the other ranks. On ranks other than 0, clears the reports and the progress of `common` and suppresses
 * output. */
tsr_status tsr_mpi_session_begin(tsr_ranks **ranks, tsr_common_options *common, tsr_err *err);
