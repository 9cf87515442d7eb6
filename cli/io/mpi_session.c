/* Joins the ranks of one command. */
#include "cli/io/mpi_session.h"

#include "cli/io/output.h"
#include "cli/io/terminal.h"

#include <stdlib.h>

tsr_status tsr_check_alone(const char *instead, tsr_err *err)
{
    static const char *const kCounts[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof kCounts / sizeof *kCounts; i++) {
        const char *const count = getenv(kCounts[i]);
        if (count != NULL && strtoul(count, NULL, 10) > 1)
            return tsr_fail(err, TSR_E_USAGE, "%s processes of this command were started together (%s): %s", count,
                            kCounts[i], instead);
    }
    return TSR_OK;
}

tsr_status tsr_mpi_session_begin(tsr_ranks **ranks, tsr_common_options *common, tsr_err *err)
{
    TSR_TRY(tsr_ranks_begin(ranks, err));
    if (tsr_ranks_mine(*ranks) == 0)
        return TSR_OK;
    common->json = common->junit = NULL;
    common->progress = (tsr_progress_options){0};
    tsr_output_hush();
    (void)tsr_terminal_catch_interrupt(); /* mpirun sends signals to all ranks, and rank 0 ends the job */
    return TSR_OK;
}
