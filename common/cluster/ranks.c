/* Shares statuses, claims items and combines results of the ranks of one job. */
#include "common/cluster/ranks.h"

#include "common/checked.h"
#include "common/cluster/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Larger than the number of items of any job. */
#define BEYOND_ALL_ITEMS (UINT64_MAX / 4)

/* Status of a rank so far. */
typedef struct rank_status {
    int32_t status;
    uint32_t unused;
    uint64_t fingerprint;
    char host[64];
    tsr_err err;
} rank_status;

struct tsr_ranks {
    const tsr_transport *transport;
    rank_status *statuses; /* [size] */
    bool failed;           /* all ranks know of a failure and share nothing more */
};

tsr_status tsr_ranks_begin(tsr_ranks **ranks, tsr_err *err)
{
    const tsr_transport *transport;
    TSR_TRY(tsr_transport_open(&transport, err));
    tsr_ranks *const r = calloc(1, sizeof *r);
    rank_status *const statuses = calloc(transport->size, sizeof *statuses);
    if (r == NULL || statuses == NULL) {
        free(r);
        free(statuses);
        return tsr_out_of_memory(err, NULL); /* mpirun ends the others when this process ends without MPI_Finalize */
    }
    *r = (tsr_ranks){.transport = transport, .statuses = statuses};
    *ranks = r;
    return TSR_OK;
}

unsigned tsr_ranks_mine(const tsr_ranks *ranks)
{
    return ranks == NULL ? 0 : ranks->transport->rank;
}

unsigned tsr_ranks_count(const tsr_ranks *ranks)
{
    return ranks == NULL ? 1 : ranks->transport->size;
}

/* ---- statuses ---- */

/* Combines the messages of all failed ranks: rank 0's first, unchanged, and each other text once. */
static tsr_status join_failures(const tsr_ranks *ranks, tsr_err *err)
{
    tsr_status status = TSR_OK;
    tsr_err all = {0};
    size_t n = 0;
    for (unsigned k = 0; k < ranks->transport->size; k++) {
        const rank_status *const s = &ranks->statuses[k];
        if (status == TSR_OK && s->status != 0) { /* the first error selects the section and the tensor */
            status = (tsr_status)s->status;
            all.id = s->err.id;
            memcpy(all.tensor, s->err.tensor, sizeof all.tensor);
        }
        if (s->status == TSR_OK || strstr(all.msg, s->err.msg) != NULL)
            continue;
        n += (size_t)(k == 0 ? snprintf(all.msg, sizeof all.msg, "%s", s->err.msg)
                             : snprintf(all.msg + n, sizeof all.msg - n, "%srank %u on %s: %s", n == 0 ? "" : "; ", k,
                                        s->host, s->err.msg));
        n = tsr_min_u64(n, sizeof all.msg - 1);
    }
    if (status != TSR_OK && err != NULL)
        *err = all;
    return status;
}

static tsr_status check_fingerprints(const tsr_ranks *ranks, tsr_err *err)
{
    const rank_status *const all = ranks->statuses;
    for (unsigned k = 1; k < ranks->transport->size; k++) {
        if (all[k].fingerprint != all[0].fingerprint)
            return tsr_fail(err, TSR_E_MISMATCH,
                            "rank %u on %s has a different plan from rank 0 on %s; both must see the same source, with "
                            "the same times, and run the same version of Tessera",
                            k, all[k].host, all[0].host);
    }
    return TSR_OK;
}

static tsr_status cannot_reach(tsr_err *err)
{
    return tsr_fail(err, TSR_E_IO, "--mpi: the ranks cannot communicate");
}

tsr_status tsr_ranks_agree(tsr_ranks *ranks, tsr_status status, uint64_t fingerprint, tsr_err *err)
{
    rank_status mine;
    if (ranks == NULL || ranks->failed)
        return status;
    memset(&mine, 0, sizeof mine);
    mine.status = status;
    mine.fingerprint = status == TSR_OK ? fingerprint : 0;
    if (status != TSR_OK && err != NULL)
        mine.err = *err;
    (void)gethostname(mine.host, sizeof mine.host - 1);
    if (!ranks->transport->gather(&mine, ranks->statuses, sizeof mine)) {
        ranks->failed = true;
        return cannot_reach(err);
    }
    status = join_failures(ranks, err);
    if (status == TSR_OK)
        status = check_fingerprints(ranks, err);
    ranks->failed = status != TSR_OK;
    return status;
}

tsr_status tsr_ranks_share_status(tsr_ranks *ranks, tsr_status status, tsr_err *err)
{
    return tsr_ranks_agree(ranks, status, 0, err);
}

/* ---- results ---- */

tsr_status tsr_ranks_combine(tsr_ranks *ranks, void *data, size_t size, tsr_err *err)
{
    return ranks == NULL || ranks->transport->combine(data, size) ? TSR_OK : cannot_reach(err);
}

tsr_status tsr_ranks_end(tsr_ranks *ranks, tsr_status status, tsr_err *err)
{
    if (ranks == NULL)
        return status;
    status = tsr_ranks_share_status(ranks, status, err);
    ranks->transport->end();
    free(ranks->statuses);
    free(ranks);
    return status;
}

/* ---- claims ---- */

tsr_status tsr_claims_take(tsr_claims *claims, uint64_t item, bool *mine, tsr_err *err)
{
    const tsr_transport *const t = claims->ranks == NULL ? NULL : claims->ranks->transport;
    while (t != NULL && (!claims->begun || claims->next < item)) {
        claims->begun = true;
        if (!t->fetch_add(claims->counter, 1, &claims->next))
            return cannot_reach(err);
    }
    *mine = t == NULL || claims->next == item;
    return TSR_OK;
}

void tsr_claims_stop(const tsr_claims *claims)
{
    uint64_t before;
    if (claims->ranks != NULL)
        (void)claims->ranks->transport->fetch_add(claims->counter, BEYOND_ALL_ITEMS, &before);
}
