/* Implements the operations of transport.h with MPI. */
#include "common/cluster/transport.h"

#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    SHORTEST_NS = 20000,
    LONGEST_NS = 500000,
    COMBINED_BYTES = 1 << 26, /* bytes per MPI call, which counts in int */
};

tsr_transport_begin_fn tsr_transport_begin;

static tsr_transport transport;
static uint64_t *counters; /* [TSR_COUNTERS] on rank 0 */
static MPI_Win window;     /* memory window that holds the counters */
static pthread_t progress;
static atomic_bool ended;

static void pause_for(long ns)
{
    const struct timespec rest = {.tv_nsec = ns};
    (void)nanosleep(&rest, NULL);
}

/* Waits for a request. It sleeps instead of spinning, to leave the processors to computing threads. */
static bool finish(MPI_Request *request)
{
    long pause = SHORTEST_NS;
    for (;;) {
        int done = 0;
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return false;
        if (done)
            return true;
        pause_for(pause);
        pause = 2 * pause < LONGEST_NS ? 2 * pause : LONGEST_NS;
    }
}

static bool gather(const void *mine, void *all, size_t each)
{
    MPI_Request request;
    return each <= INT_MAX &&
           MPI_Iallgather(mine, (int)each, MPI_BYTE, all, (int)each, MPI_BYTE, MPI_COMM_WORLD, &request) ==
               MPI_SUCCESS &&
           finish(&request);
}

static bool combine(void *data, size_t size)
{
    bool ok = true;
    for (size_t at = 0; at < size && ok; at += COMBINED_BYTES) {
        const size_t n = size - at < COMBINED_BYTES ? size - at : COMBINED_BYTES;
        MPI_Request request;
        ok = MPI_Iallreduce(MPI_IN_PLACE, (char *)data + at, (int)n, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD, &request) ==
                 MPI_SUCCESS &&
             finish(&request);
    }
    return ok;
}

static bool fetch_add(unsigned counter, uint64_t add, uint64_t *before)
{
    return MPI_Fetch_and_op(&add, before, MPI_UINT64_T, 0, (MPI_Aint)counter, MPI_SUM, window) == MPI_SUCCESS &&
           MPI_Win_flush(0, window) == MPI_SUCCESS;
}

/* Lets MPI serve the counters while the other threads of rank 0 compute, because some networks need the target's
 * help. */
static void *serve_counters(void *unused)
{
    (void)unused;
    while (!atomic_load(&ended)) {
        int waiting;
        (void)MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &waiting, MPI_STATUS_IGNORE);
        pause_for(LONGEST_NS);
    }
    return NULL;
}

static void end(void)
{
    MPI_Request request;
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request) == MPI_SUCCESS)
        (void)finish(&request);
    atomic_store(&ended, true);
    if (transport.rank == 0)
        pthread_join(progress, NULL);
    (void)MPI_Win_unlock_all(window);
    (void)MPI_Win_free(&window);
    (void)MPI_Finalize();
}

/* Creates the counters. Returns what failed, or NULL. */
static const char *make_counters(void)
{
    const MPI_Aint bytes = transport.rank == 0 ? TSR_COUNTERS * (MPI_Aint)sizeof *counters : 0;
    if (MPI_Win_allocate(bytes, sizeof *counters, MPI_INFO_NULL, MPI_COMM_WORLD, &counters, &window) != MPI_SUCCESS)
        return "MPI cannot allocate the shared counters";
    if (transport.rank == 0)
        memset(counters, 0, (size_t)bytes);
    if (MPI_Barrier(MPI_COMM_WORLD) != MPI_SUCCESS || MPI_Win_lock_all(MPI_MODE_NOCHECK, window) != MPI_SUCCESS)
        return "MPI cannot open the shared counters";
    if (transport.rank == 0 && pthread_create(&progress, NULL, serve_counters, NULL) != 0)
        return "cannot start a thread that serves the shared counters";
    return NULL;
}

const tsr_transport *tsr_transport_begin(char *why, size_t size)
{
    int provided = 0, rank = 0, ranks = 0;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
        snprintf(why, size, "MPI cannot be started");
        return NULL;
    }
    if (provided < MPI_THREAD_MULTIPLE || MPI_Comm_rank(MPI_COMM_WORLD, &rank) != MPI_SUCCESS ||
        MPI_Comm_size(MPI_COMM_WORLD, &ranks) != MPI_SUCCESS) {
        snprintf(why, size, "this MPI was built without MPI_THREAD_MULTIPLE");
        (void)MPI_Finalize();
        return NULL;
    }
    transport = (tsr_transport){.rank = (unsigned)rank,
                                .size = (unsigned)ranks,
                                .gather = gather,
                                .combine = combine,
                                .fetch_add = fetch_add,
                                .end = end};
    const char *const cannot = make_counters();
    if (cannot == NULL)
        return &transport;
    snprintf(why, size, "%s", cannot);
    return NULL; /* the process ends without MPI_Finalize, and mpirun ends the others */
}
