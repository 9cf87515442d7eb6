/* Several processes that mpirun has started, on one machine or many, and that do one job together on files that all of them see.
 * They are numbered from 0: ranks.
 *
 * Rank 0 runs the job as a process by itself would: it hands out the work, sums up, and has the last word and the only voice. For
 * each thread of another rank it has a thread of its own. That one takes work as any worker does, asks the other thread to do it,
 * and adds what comes back. So the order of things, and the result, are those of one process. What each rank calls, in this order:
 *
 *     tsr_ranks_begin    all      join
 *     tsr_ranks_agree    all      tell how they fared while they got ready, and what they take the job for: all go on, or none
 *     tsr_ranks_serve    1 to n   answer requests on as many threads as could be started, until rank 0 has no more
 *     tsr_remote_ask     0        a request, and the answer to it
 *     tsr_ranks_end      all      leave
 *
 * A pair of threads has a channel of its own; one channel more (tsr_remote_aside) is for what concerns the whole rank. On each, a
 * request goes one way, a tsr_request, and its answer comes back before the next: whether it went well, with the message if it
 * did not, and as many bytes as it says. What the numbers of a request and the bytes of an answer mean is the job's own.
 *
 * Nobody does the work of a rank that has died. mpirun (srun with --kill-on-bad-exit) ends the others and says which it was; if
 * rank 0 hears of it first, its job fails and names it. Either way the job does not end well, and the same command carries on. */
#ifndef TSR_COMMON_RANKS_H
#define TSR_COMMON_RANKS_H

#include "common/status.h"
#include "common/text.h"

#include <stdint.h>

typedef struct tsr_ranks tsr_ranks;

/* What rank 0 asks for. The job says what the numbers mean. */
typedef struct tsr_request {
    uint32_t asked, flags; /* TSR_ASKED_STOP is not for jobs */
    uint64_t index, part;
    float number;
    uint32_t unused;
} tsr_request;

#define TSR_ASKED_STOP UINT32_MAX

/* Joins the processes that mpirun has started. TSR_E_UNSUPPORTED: there is no MPI. */
tsr_status tsr_ranks_begin(tsr_ranks **ranks, tsr_err *err) TSR_WARN_UNUSED;

/* This process's number, and how many there are; 0 and 1 of NULL, which is a process by itself. */
unsigned tsr_ranks_mine(const tsr_ranks *ranks);
unsigned tsr_ranks_count(const tsr_ranks *ranks);

/* How this rank fared so far, `status` with *err; how many units of work it can have under way; and a number that is the same where
 * the job is the same, down to the files. TSR_OK, to all: rank 0 may ask, and the others call tsr_ranks_serve. Else, to all, what
 * the ranks said, or TSR_E_MISMATCH where the numbers differ. */
tsr_status tsr_ranks_agree(tsr_ranks *ranks, tsr_status status, unsigned threads, uint64_t fingerprint,
                           tsr_err *err) TSR_WARN_UNUSED;

/* What a rank but 0 does with requests. */
typedef struct tsr_server {
    void *context;
    void *(*begin)(void *context); /* what a thread works with, from its first request on; NULL: out of memory */
    tsr_status (*answer)(void *hand, const tsr_request *request, tsr_text *answer, tsr_err *err);
    void (*end)(void *hand);
} tsr_server;

/* Of a rank but 0, once they agree. Returns when rank 0 has no more to ask. */
tsr_status tsr_ranks_serve(tsr_ranks *ranks, const tsr_server *server, tsr_err *err) TSR_WARN_UNUSED;

/* How many threads the other ranks have together; 0 of NULL. */
unsigned tsr_ranks_others(const tsr_ranks *ranks);

/* A thread of another rank, as rank 0 sees it, and what it has sent. */
typedef struct tsr_remote {
    tsr_ranks *ranks;
    unsigned rank;
    int channel;
    char *answer; /* [bytes], until the next request */
    uint64_t bytes, capacity;
} tsr_remote;

/* The one of this number, of those of all other ranks; and the channel of a rank for what concerns all of it. */
tsr_remote tsr_remote_of(tsr_ranks *ranks, unsigned number);
tsr_remote tsr_remote_aside(tsr_ranks *ranks, unsigned rank);
void tsr_remote_free(tsr_remote *remote);

/* Asks, and waits for the answer. What the other side says is wrong is returned with its number and host. */
tsr_status tsr_remote_ask(tsr_remote *remote, const tsr_request *request, tsr_err *err) TSR_WARN_UNUSED;

/* Lets all ranks end, and waits for them. A rank that has not come to agree tells the others why, `status` with *err. Returns that,
 * or what they said. NULL is fine. */
tsr_status tsr_ranks_end(tsr_ranks *ranks, tsr_status status, tsr_err *err) TSR_WARN_UNUSED;

#endif
