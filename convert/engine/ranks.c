/* Joining, agreeing, ending. */
#include "convert/engine/ranks_wire.h"

#include "common/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_REMOTE = TSR_MAX_THREADS / 2 }; /* threads of rank 0 that wait for others */

tsr_status tsr_ranks_begin(tsr_ranks **ranks, tsr_err *err)
{
    const tsr_transport *transport;
    TSR_TRY(tsr_transport_open(&transport, err));
    tsr_ranks *const r = calloc(1, sizeof *r);
    if (r != NULL) {
        *r = (tsr_ranks){.transport = transport,
                         .threads = calloc(transport->size, sizeof *r->threads),
                         .standings = calloc(transport->size, sizeof *r->standings)};
        if (r->threads != NULL && r->standings != NULL) {
            *ranks = r;
            return TSR_OK;
        }
        free(r->threads);
        free(r->standings);
        free(r);
    }
    return tsr_out_of_memory(err, NULL); /* mpirun ends the others when this process ends without a word to them */
}

unsigned tsr_ranks_mine(const tsr_ranks *ranks)
{
    return ranks->transport->rank;
}

unsigned tsr_ranks_count(const tsr_ranks *ranks)
{
    return ranks->transport->size;
}

/* How many units of the plan this rank can have under way. */
static tsr_status choose_threads(const tsr_plan *plan, const tsr_run_options *options, unsigned *threads, tsr_err *err)
{
    const uint64_t tables = tsr_plan_memory(plan, 0), each = tsr_plan_memory(plan, 1) - tables;
    return tsr_choose_threads(options, tables, each, threads, err);
}

/* What all ranks find when they look at where each stands. */
static tsr_status judge(const tsr_ranks *ranks, const tsr_standing *all, tsr_err *err)
{
    for (unsigned k = 0; k < ranks->transport->size; k++) {
        const tsr_standing *const s = &all[k];
        if (s->status != TSR_OK)
            return k == 0 ? tsr_fail(err, (tsr_status)s->status, "%s", s->err.msg)
                          : tsr_fail(err, (tsr_status)s->status, "rank %u on %s: %s", k, s->host, s->err.msg);
        if (s->threads == 0 && (k > 0 || ranks->transport->size == 1))
            return tsr_fail(err, TSR_E_USAGE,
                            "--threads 0 is for a rank 0 that has others to do the work, not for rank %u of %u", k,
                            ranks->transport->size);
        if (s->fingerprint != all[0].fingerprint)
            return tsr_fail(err, TSR_E_MISMATCH,
                            "rank %u on %s makes another plan than rank 0 on %s: do both see the same source, with the "
                            "same times, and the same version of Tessera?",
                            k, s->host, all[0].host);
    }
    return TSR_OK;
}

tsr_status tsr_ranks_agree(tsr_ranks *ranks, tsr_status status, const tsr_plan *plan, const tsr_run_options *options,
                           tsr_err *err)
{
    const tsr_transport *const t = ranks->transport;
    tsr_standing mine;
    memset(&mine, 0, sizeof mine);
    if (status == TSR_OK)
        status = choose_threads(plan, options, &mine.threads, err);
    if (status == TSR_OK && t->rank == 0) {
        ranks->touched = calloc((plan->n_files + 1) * t->size, sizeof *ranks->touched);
        if (ranks->touched == NULL)
            status = tsr_out_of_memory(err, NULL);
    }
    mine.status = status;
    mine.fingerprint = status == TSR_OK ? plan->fingerprint : 0;
    if (status != TSR_OK)
        mine.err = *err;
    (void)gethostname(mine.host, sizeof mine.host - 1);
    status = t->gather(&mine, ranks->standings, sizeof mine)
                 ? judge(ranks, ranks->standings, err)
                 : tsr_fail(err, TSR_E_IO, "--mpi: the ranks cannot reach each other");
    for (unsigned k = 0; status == TSR_OK && k < t->size; k++) {
        ranks->threads[k] = (unsigned)tsr_min_u64(ranks->standings[k].threads, MOST_REMOTE / t->size + 1);
        ranks->n_workers += k > 0 ? ranks->threads[k] : 0;
    }
    return status;
}

static void stop(const tsr_ranks *ranks)
{
    const tsr_transport *const t = ranks->transport;
    const tsr_request request = {.asked = TSR_ASKED_STOP};
    for (unsigned k = 1; k < t->size; k++) {
        for (unsigned i = 0; ranks->threads[k] > 0 && i <= ranks->threads[k]; i++)
            (void)!t->send(k, (int)i, &request, sizeof request);
    }
}

void tsr_ranks_end(tsr_ranks *ranks)
{
    if (ranks == NULL)
        return;
    if (ranks->transport->rank == 0 && ranks->threads != NULL)
        stop(ranks);
    ranks->transport->end();
    free(ranks->touched);
    free(ranks->standings);
    free(ranks->threads);
    free(ranks);
}
