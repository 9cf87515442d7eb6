/* Joining, agreeing, asking, answering, ending. */
#include "common/ranks.h"

#include "common/checked.h"
#include "common/threads.h"
#include "common/transport.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_REMOTE = TSR_MAX_THREADS / 2, /* threads of rank 0 that wait for others */
    ASIDE = 0,                         /* the channel for what concerns the whole rank; those of threads follow */
    FIRST_CHANNEL,
};

/* How a rank fared while it got ready. */
typedef struct standing {
    int32_t status;
    uint32_t threads;
    uint64_t fingerprint;
    char host[64];
    tsr_err err;
} standing;

/* Before the bytes of an answer. */
typedef struct answer_head {
    int32_t status;
    uint32_t unused;
    uint64_t bytes;
    tsr_err err;
} answer_head;

struct tsr_ranks {
    const tsr_transport *transport;
    standing *standings; /* [size] */
    uint32_t *threads;   /* [size]: how many serve, the one aside included; of rank 0 none */
    bool met, agreed;    /* they have told each other; and all go on */
};

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
    return ranks == NULL ? 0 : ranks->transport->rank;
}

unsigned tsr_ranks_count(const tsr_ranks *ranks)
{
    return ranks == NULL ? 1 : ranks->transport->size;
}

/* ---- agreeing ---- */

/* What the ranks that cannot go on say: rank 0 first, as if it were alone, and each other sentence once. */
static tsr_status tell_failures(const tsr_ranks *ranks, tsr_err *err)
{
    tsr_status status = TSR_OK;
    tsr_err said = {{0}};
    size_t n = 0;
    for (unsigned k = 0; k < ranks->transport->size; k++) {
        const standing *const s = &ranks->standings[k];
        status = status == TSR_OK ? (tsr_status)s->status : status;
        if (s->status == TSR_OK || strstr(said.msg, s->err.msg) != NULL)
            continue;
        n += (size_t)(k == 0 ? snprintf(said.msg, sizeof said.msg, "%s", s->err.msg)
                             : snprintf(said.msg + n, sizeof said.msg - n, "%srank %u on %s: %s", n == 0 ? "" : "; ", k,
                                        s->host, s->err.msg));
        n = tsr_min_u64(n, sizeof said.msg - 1);
    }
    if (status != TSR_OK && err != NULL)
        *err = said;
    return status;
}

/* What all ranks find when they look at where each stands. */
static tsr_status judge(const tsr_ranks *ranks, tsr_err *err)
{
    const standing *const all = ranks->standings;
    TSR_TRY(tell_failures(ranks, err));
    for (unsigned k = 0; k < ranks->transport->size; k++) {
        if (all[k].threads == 0 && (k > 0 || ranks->transport->size == 1))
            return tsr_fail(err, TSR_E_USAGE,
                            "--threads 0 is for a rank 0 that has others to do the work, not for rank %u of %u", k,
                            ranks->transport->size);
        if (all[k].fingerprint != all[0].fingerprint)
            return tsr_fail(err, TSR_E_MISMATCH,
                            "rank %u on %s has another plan than rank 0 on %s: do both see the same source, with the "
                            "same times, and the same version of Tessera?",
                            k, all[k].host, all[0].host);
    }
    return TSR_OK;
}

static tsr_status cannot_reach(tsr_err *err)
{
    return tsr_fail(err, TSR_E_IO, "--mpi: the ranks cannot reach each other");
}

/* What each rank could start, once they agree. */
static tsr_status count_threads(tsr_ranks *ranks, uint32_t mine, tsr_err *err)
{
    if (!ranks->transport->gather(&mine, ranks->threads, sizeof mine))
        return cannot_reach(err);
    for (unsigned k = 1; k < ranks->transport->size; k++) {
        if (ranks->threads[k] < FIRST_CHANNEL + 1)
            return tsr_fail(err, TSR_E_NOMEM, "rank %u on %s cannot start a thread", k, ranks->standings[k].host);
    }
    return TSR_OK;
}

tsr_status tsr_ranks_agree(tsr_ranks *ranks, tsr_status status, unsigned threads, uint64_t fingerprint, tsr_err *err)
{
    standing mine;
    memset(&mine, 0, sizeof mine);
    mine.status = status;
    mine.threads = threads;
    mine.fingerprint = status == TSR_OK ? fingerprint : 0;
    if (status != TSR_OK && err != NULL)
        mine.err = *err;
    (void)gethostname(mine.host, sizeof mine.host - 1);
    ranks->met = true;
    if (!ranks->transport->gather(&mine, ranks->standings, sizeof mine))
        return cannot_reach(err);
    TSR_TRY(judge(ranks, err));
    ranks->agreed = true;
    return ranks->transport->rank == 0 ? count_threads(ranks, 0, err) : TSR_OK;
}

/* ---- asking ---- */

/* Threads of a rank that take requests for work. */
static unsigned workers_of(const tsr_ranks *ranks, unsigned rank)
{
    return ranks->threads[rank] < FIRST_CHANNEL ? 0 : ranks->threads[rank] - FIRST_CHANNEL;
}

unsigned tsr_ranks_others(const tsr_ranks *ranks)
{
    unsigned n = 0;
    for (unsigned k = 1; ranks != NULL && k < ranks->transport->size; k++)
        n += workers_of(ranks, k);
    return n;
}

tsr_remote tsr_remote_of(tsr_ranks *ranks, unsigned number)
{
    unsigned rank = 1;
    for (; number >= workers_of(ranks, rank); rank++)
        number -= workers_of(ranks, rank);
    return (tsr_remote){.ranks = ranks, .rank = rank, .channel = (int)number + FIRST_CHANNEL};
}

tsr_remote tsr_remote_aside(tsr_ranks *ranks, unsigned rank)
{
    return (tsr_remote){.ranks = ranks, .rank = rank, .channel = ASIDE};
}

void tsr_remote_free(tsr_remote *remote)
{
    free(remote->answer);
    *remote = (tsr_remote){0};
}

tsr_status tsr_remote_ask(tsr_remote *r, const tsr_request *q, tsr_err *err)
{
    const tsr_transport *const t = r->ranks->transport;
    const char *const host = r->ranks->standings[r->rank].host;
    answer_head a;
    if (!t->send(r->rank, r->channel, q, sizeof *q) || !t->receive(r->rank, r->channel, &a, sizeof a))
        return tsr_fail(err, TSR_E_IO, "rank %u on %s cannot be reached any more", r->rank, host);
    if (a.bytes > r->capacity) {
        char *const more = realloc(r->answer, a.bytes);
        if (more == NULL) /* the other side would wait for ever: the run ends, and with it the process */
            return tsr_out_of_memory(err, "for what another rank has made");
        r->answer = more;
        r->capacity = a.bytes;
    }
    r->bytes = a.bytes;
    if (a.bytes > 0 && !t->receive(r->rank, r->channel, r->answer, a.bytes))
        return tsr_fail(err, TSR_E_IO, "rank %u on %s cannot be reached any more", r->rank, host);
    return a.status == TSR_OK ? TSR_OK
                              : tsr_fail(err, (tsr_status)a.status, "%s (rank %u on %s)", a.err.msg, r->rank, host);
}

/* ---- answering ---- */

/* What all threads of a rank share. */
typedef struct serving {
    const tsr_transport *transport;
    const tsr_server *server;
    atomic_int next_channel;
} serving;

/* A thread, on a channel of its own. */
static void *serve(void *argument)
{
    serving *const s = argument;
    const int channel = atomic_fetch_add(&s->next_channel, 1);
    void *hand = NULL;
    tsr_text answer = {0};
    tsr_request q;
    tsr_set_float_mode();
    while (s->transport->receive(0, channel, &q, sizeof q) && q.asked != TSR_ASKED_STOP) {
        answer_head a;
        memset(&a, 0, sizeof a);
        answer.size = 0;
        if (hand == NULL)
            hand = s->server->begin(s->server->context);
        a.status =
            hand == NULL ? tsr_out_of_memory(&a.err, "for a worker") : s->server->answer(hand, &q, &answer, &a.err);
        if (a.status == TSR_OK)
            a.status = tsr_text_status(&answer, &a.err);
        a.bytes = a.status == TSR_OK ? answer.size : 0;
        if (!s->transport->send(0, channel, &a, sizeof a) ||
            (a.bytes > 0 && !s->transport->send(0, channel, answer.data, a.bytes)))
            break;
    }
    if (hand != NULL)
        s->server->end(hand);
    tsr_text_free(&answer);
    return NULL;
}

tsr_status tsr_ranks_serve(tsr_ranks *ranks, const tsr_server *server, tsr_err *err)
{
    const tsr_transport *const t = ranks->transport;
    const unsigned most =
        (unsigned)tsr_min_u64(ranks->standings[t->rank].threads, MOST_REMOTE / t->size + 1) + FIRST_CHANNEL;
    serving s = {.transport = t, .server = server};
    pthread_t threads[MOST_REMOTE + 1 + FIRST_CHANNEL];
    uint32_t started = 0;
    /* Rank 0 hears how many there are, and waits for no other. */
    while (started < most && pthread_create(&threads[started], NULL, serve, &s) == 0)
        started++;
    const tsr_status status = count_threads(ranks, started, err);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return status;
}

/* ---- ending ---- */

static void stop(const tsr_ranks *ranks)
{
    const tsr_transport *const t = ranks->transport;
    const tsr_request request = {.asked = TSR_ASKED_STOP};
    for (unsigned k = 1; k < t->size; k++) {
        for (unsigned i = 0; i < ranks->threads[k]; i++)
            (void)!t->send(k, (int)i, &request, sizeof request);
    }
}

tsr_status tsr_ranks_end(tsr_ranks *ranks, tsr_status status, tsr_err *err)
{
    if (ranks == NULL)
        return status;
    if (!ranks->met && status != TSR_OK)
        status = tsr_ranks_agree(ranks, status, 0, 0, err);
    if (ranks->transport->rank == 0 && ranks->agreed)
        stop(ranks);
    ranks->transport->end();
    free(ranks->standings);
    free(ranks->threads);
    free(ranks);
    return status;
}
