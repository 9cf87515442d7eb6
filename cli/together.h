/* Commands that several processes carry out together: --mpi. Rank 0 is the command as ever; the others work for it, and say nothing. */
#ifndef TSR_CLI_TOGETHER_H
#define TSR_CLI_TOGETHER_H

#include "cli/options.h"
#include "common/ranks.h"

/* The entry of a table of options. */
#define TSR_MPI_OPTION(to)                                                                    \
    {                                                                                         \
        "--mpi", TSR_OPT_FLAG, (to), NULL,                                                    \
            "work together with the other processes that mpirun has started: docs/cluster.md" \
    }

/* TSR_E_USAGE: mpirun or srun has started several processes, and they know nothing of each other. `instead` is what to do about it. */
tsr_status tsr_check_alone(const char *instead, tsr_err *err) TSR_WARN_UNUSED;

/* Where a command writes what it found out and how far it is: in a rank but 0, nowhere. */
typedef struct tsr_told_where {
    const char **json, **junit;
    tsr_progress_options *progress;
} tsr_told_where;

/* Joins the other processes. */
tsr_status tsr_together_begin(tsr_ranks **ranks, const tsr_told_where *where, tsr_err *err) TSR_WARN_UNUSED;

/* Parts from them, and is the last line of a command, as tsr_end. `ranks` is NULL without --mpi. */
int tsr_together_end(tsr_ranks *ranks, const char *command, tsr_status status, bool fine, tsr_err *err);

#endif
