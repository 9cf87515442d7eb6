/* Joining, and parting. */
#include "cli/together.h"

#include "cli/output.h"
#include "cli/places.h"
#include "cli/results.h"
#include "cli/terminal.h"

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

tsr_status tsr_together_begin(tsr_ranks **ranks, const tsr_told_where *where, tsr_err *err)
{
    TSR_TRY(tsr_ranks_begin(ranks, err));
    if (tsr_ranks_mine(*ranks) == 0)
        return TSR_OK;
    *where->json = *where->junit = NULL;
    *where->progress = (tsr_progress_options){0};
    tsr_output_hush();
    (void)tsr_owe_reports((tsr_owed){0});
    (void)tsr_terminal_catch_interrupt(); /* rank 0 stops the job, and this one with it */
    return TSR_OK;
}

int tsr_together_end(tsr_ranks *ranks, const char *command, tsr_status status, bool fine, tsr_err *err)
{
    const bool silent = tsr_ranks_mine(ranks) > 0;
    status = tsr_ranks_end(ranks, status, err);
    /* mpirun ends all processes as soon as one fails, and rank 0 has yet to say why. */
    return silent ? 0 : tsr_end(command, status, fine, err);
}
