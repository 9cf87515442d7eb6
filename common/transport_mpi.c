/* Messages by MPI. Waiting sleeps in between instead of spinning: the processors are for work, and what is waited for takes
 * milliseconds. */
#include "common/transport.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <time.h>

enum { SHORTEST_NS = 20000, LONGEST_NS = 500000 };

tsr_transport_begin_fn tsr_transport_begin;

static bool finish(MPI_Request *request)
{
    long pause = SHORTEST_NS;
    for (;;) {
        int done = 0;
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return false;
        if (done)
            return true;
        const struct timespec rest = {.tv_nsec = pause};
        (void)nanosleep(&rest, NULL);
        pause = 2 * pause < LONGEST_NS ? 2 * pause : LONGEST_NS;
    }
}

static bool send(unsigned to, int channel, const void *data, size_t size)
{
    MPI_Request request;
    return size <= INT_MAX &&
           MPI_Isend(data, (int)size, MPI_BYTE, (int)to, channel, MPI_COMM_WORLD, &request) == MPI_SUCCESS &&
           finish(&request);
}

static bool receive(unsigned from, int channel, void *data, size_t size)
{
    MPI_Request request;
    return size <= INT_MAX &&
           MPI_Irecv(data, (int)size, MPI_BYTE, (int)from, channel, MPI_COMM_WORLD, &request) == MPI_SUCCESS &&
           finish(&request);
}

static bool gather(const void *mine, void *all, size_t each)
{
    return each <= INT_MAX &&
           MPI_Allgather(mine, (int)each, MPI_BYTE, all, (int)each, MPI_BYTE, MPI_COMM_WORLD) == MPI_SUCCESS;
}

static void end(void)
{
    (void)MPI_Finalize();
}

const tsr_transport *tsr_transport_begin(char *why, size_t size)
{
    static tsr_transport transport = {.send = send, .receive = receive, .gather = gather, .end = end};
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
    transport.rank = (unsigned)rank;
    transport.size = (unsigned)ranks;
    return &transport;
}
