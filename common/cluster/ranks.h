/* Lets processes started by mpirun do one job together: they share statuses, claim items, and combine results.
 *
 * The processes are numbered from 0 and called ranks. All of them see the same files, and each calls these functions in
 * the same order, except for claims. The pattern of a job is:
 *
 *     tsr_ranks_begin          join
 *     tsr_ranks_agree          compare the jobs of the ranks: all continue, or none
 *     tsr_claims_take          get the next item from a counter that all ranks share
 *     tsr_ranks_share_status   learn whether any rank has failed
 *     tsr_ranks_combine        give the results of each rank to all
 *     tsr_ranks_end            leave
 *
 * A rank that fails goes to the next call that shares statuses, at the latest tsr_ranks_end. There all ranks learn of
 * the failure and return it. No other rank takes over the items of a rank that dies: mpirun (srun with
 * --kill-on-bad-exit) then ends all ranks, and the same command resumes the job. */
#pragma once

#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_ranks tsr_ranks;

/* Joins the processes that mpirun has started. TSR_E_UNSUPPORTED: MPI is not available. */
tsr_status tsr_ranks_begin(tsr_ranks **ranks, tsr_err *err);

/* Returns the number of this process, and the number of processes. For NULL, a single process: 0 and 1. */
unsigned tsr_ranks_mine(const tsr_ranks *ranks);
unsigned tsr_ranks_count(const tsr_ranks *ranks);

/* Shares the status of each rank (`status` with *err) and a fingerprint of the job. Returns TSR_OK on all ranks or on
 * none: otherwise the first failure with the messages of all, or TSR_E_MISMATCH if fingerprints differ. */
tsr_status tsr_ranks_agree(tsr_ranks *ranks, tsr_status status, uint64_t fingerprint, tsr_err *err);

/* Shares the status of each rank. Returns `status` if ranks is NULL, or if they have shared a failure before. */
tsr_status tsr_ranks_share_status(tsr_ranks *ranks, tsr_status status, tsr_err *err);

/* Replaces `data` on every rank by the bitwise OR of all ranks' data. Each rank has zeros where another has results. */
tsr_status tsr_ranks_combine(tsr_ranks *ranks, void *data, size_t size, tsr_err *err);

/* Shares the final status and leaves. Returns it, or the failure of another rank. NULL is allowed. */
tsr_status tsr_ranks_end(tsr_ranks *ranks, tsr_status status, tsr_err *err);

/* The claims of one rank on numbered items. */
typedef struct tsr_claims {
    tsr_ranks *ranks; /* NULL: this process has all items */
    unsigned counter; /* below TSR_COUNTERS; each counter can be used once per job */
    bool begun;
    uint64_t next; /* the last claimed item */
} tsr_claims;

/* Sets *mine if this rank has the item. Items must be requested in ascending order, by one thread at a time; the same
 * item may be requested repeatedly. An item is claimed when it is first requested, so a slow rank claims fewer. */
tsr_status tsr_claims_take(tsr_claims *claims, uint64_t item, bool *mine, tsr_err *err);

/* Stops all ranks from claiming more items, because the job has failed. */
void tsr_claims_stop(const tsr_claims *claims);
