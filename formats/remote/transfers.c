/* The thread that carries out requests. */
#include "formats/remote/request.h"

#ifdef TSR_HAVE_CURL
#include "common/parallel/threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

enum {
    PARALLEL = 16,     /* requests at a time */
    STALL = 30,        /* seconds without a byte; HF_HUB_DOWNLOAD_TIMEOUT sets others */
    NAP = 1000,        /* milliseconds between looks at the queue */
    WHILE = 100000000, /* nanoseconds */
    SECOND = 1000000000,
};

struct tsr_transfers {
    tsr_requests requests;
    CURLM *multi;
    CURL *idle[PARALLEL]; /* [n_idle] */
    unsigned n_idle, n_running;
    tsr_transfer *running[PARALLEL];

    pthread_mutex_t lock; /* guards the following members, and `over` of transfers */
    pthread_cond_t changed;
    tsr_transfer *first, **end; /* waiting requests */
    pthread_t thread;
    bool started, closing;
};

/* Returns the first request whose time has come, and takes it out of the queue. Otherwise sets the milliseconds to the
 * next one, at most NAP. Called with the lock held. */
static tsr_transfer *take_waiting(tsr_transfers *s, int *nap)
{
    const double now = tsr_now();
    for (tsr_transfer **at = &s->first; *at != NULL; at = &(*at)->next) {
        tsr_transfer *const t = *at;
        if (t->not_before > now) {
            const double wait = (t->not_before - now) * 1000 + 1;
            *nap = wait < *nap ? (int)wait : *nap;
            continue;
        }
        *at = t->next;
        if (s->end == &t->next)
            s->end = at;
        t->next = NULL;
        return t;
    }
    return NULL;
}

static void enqueue(tsr_transfers *s, tsr_transfer *t)
{
    t->next = NULL;
    *s->end = t;
    s->end = &t->next;
}

static void end_transfer(tsr_transfers *s, tsr_transfer *t)
{
    free(t->target);
    t->target = NULL;
    pthread_mutex_lock(&s->lock);
    t->over = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Begins an attempt. If that fails, the request ends. */
static void begin_attempt(tsr_transfers *s, tsr_transfer *t)
{
    const tsr_curl *const c = &s->requests.curl;
    t->easy = s->n_idle > 0 ? s->idle[--s->n_idle] : c->easy_init();
    t->status = t->easy == NULL ? tsr_out_of_memory(&t->err, "for a request") : TSR_OK;
    if (t->status == TSR_OK)
        t->status = tsr_request_begin(&s->requests, t, &t->err);
    if (t->status == TSR_OK && c->multi_add_handle(s->multi, t->easy) != CURLM_OK)
        t->status = tsr_out_of_memory(&t->err, "for a request");
    if (t->status == TSR_OK) {
        s->running[s->n_running++] = t;
        return;
    }
    if (t->easy != NULL)
        s->idle[s->n_idle++] = t->easy;
    c->slist_free_all(t->headers);
    t->headers = NULL;
    end_transfer(s, t);
}

/* Takes a request out of those that run, and its handle back. */
static void stop_attempt(tsr_transfers *s, tsr_transfer *t)
{
    unsigned i = 0;
    while (s->running[i] != t)
        i++;
    s->running[i] = s->running[--s->n_running];
    (void)s->requests.curl.multi_remove_handle(s->multi, t->easy);
    s->idle[s->n_idle++] = t->easy;
}

static void take_results(tsr_transfers *s)
{
    const tsr_curl *const c = &s->requests.curl;
    int left;
    for (const CURLMsg *m; (m = c->multi_info_read(s->multi, &left)) != NULL;) {
        char *private = NULL;
        if (m->msg != CURLMSG_DONE)
            continue;
        const CURLcode code = m->data.result;
        (void)c->easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &private);
        tsr_transfer *const t = (void *)private;
        const bool over = tsr_request_end(&s->requests, t, code);
        stop_attempt(s, t);
        if (over) {
            end_transfer(s, t);
            continue;
        }
        pthread_mutex_lock(&s->lock);
        enqueue(s, t);
        pthread_mutex_unlock(&s->lock);
    }
}

/* Ends all requests, because the address is closed. */
static void abandon_all(tsr_transfers *s)
{
    while (s->n_running > 0) {
        tsr_transfer *const t = s->running[0];
        stop_attempt(s, t);
        s->requests.curl.slist_free_all(t->headers);
        t->headers = NULL;
        t->status = tsr_fail(&t->err, TSR_E_CANCELLED, "the address was closed");
        end_transfer(s, t);
    }
    pthread_mutex_lock(&s->lock);
    for (tsr_transfer *t = s->first; t != NULL; t = t->next) {
        t->status = tsr_fail(&t->err, TSR_E_CANCELLED, "the address was closed");
        t->over = true;
    }
    s->first = NULL;
    s->end = &s->first;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void *carry_out(void *transfers)
{
    tsr_transfers *const s = transfers;
    const tsr_curl *const c = &s->requests.curl;
    /* A connection that breaks while it is written to must not end the process. */
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    for (bool closing = false; !closing;) {
        int nap = NAP, running;
        for (;;) {
            pthread_mutex_lock(&s->lock);
            closing = s->closing;
            tsr_transfer *const t = s->n_running < PARALLEL && !closing ? take_waiting(s, &nap) : NULL;
            pthread_mutex_unlock(&s->lock);
            if (t == NULL)
                break;
            begin_attempt(s, t);
        }
        (void)c->multi_perform(s->multi, &running);
        const unsigned before = s->n_running;
        take_results(s);
        if (!closing && s->n_running == before)
            (void)c->multi_poll(s->multi, NULL, 0, nap, NULL);
    }
    abandon_all(s);
    return NULL;
}

static long stall_seconds(void)
{
    const char *const text = getenv("HF_HUB_DOWNLOAD_TIMEOUT");
    uint64_t seconds;
    return text != NULL && tsr_parse_decimal(text, &seconds) && seconds > 0 && seconds < 3600 ? (long)seconds : STALL;
}

tsr_status tsr_transfers_begin(tsr_transfers **transfers, const tsr_access *access, tsr_err *err)
{
    *transfers = NULL;
    tsr_transfers *const s = calloc(1, sizeof *s);
    if (s == NULL)
        return tsr_out_of_memory(err, "for connections");
    s->requests.access = access;
    s->requests.stall = stall_seconds();
    s->end = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    tsr_status status = tsr_curl_load(&s->requests.curl, err);
    if (status == TSR_OK) {
        (void)s->requests.curl.global_init(CURL_GLOBAL_DEFAULT);
        s->multi = s->requests.curl.multi_init();
        status = s->multi == NULL ? tsr_out_of_memory(err, "for connections") : TSR_OK;
    }
    if (status != TSR_OK) {
        tsr_transfers_end(s);
        return status;
    }
    (void)s->requests.curl.multi_setopt(s->multi, CURLMOPT_MAXCONNECTS, (long)PARALLEL);
    *transfers = s;
    return TSR_OK;
}

void tsr_transfers_add(tsr_transfers *s, tsr_transfer *t)
{
    pthread_mutex_lock(&s->lock);
    if (!s->started && pthread_create(&s->thread, NULL, carry_out, s) == 0)
        s->started = true;
    if (s->started) {
        enqueue(s, t);
    } else {
        t->status = tsr_fail(&t->err, TSR_E_NOMEM, "cannot start a thread for connections");
        t->over = true;
    }
    pthread_mutex_unlock(&s->lock);
    (void)s->requests.curl.multi_wakeup(s->multi);
}

tsr_status tsr_transfers_wait(tsr_transfers *s, tsr_transfer *t, tsr_err *err)
{
    pthread_mutex_lock(&s->lock);
    while (!t->over)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return t->status == TSR_OK ? TSR_OK : tsr_fail_with(err, t->status, &t->err);
}

bool tsr_transfers_wait_a_while(tsr_transfers *s, const tsr_transfer *t)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += WHILE;
    until.tv_sec += until.tv_nsec / SECOND;
    until.tv_nsec %= SECOND;
    pthread_mutex_lock(&s->lock);
    for (int why = 0; !t->over && why == 0;)
        why = pthread_cond_timedwait(&s->changed, &s->lock, &until);
    const bool over = t->over;
    pthread_mutex_unlock(&s->lock);
    return over;
}

bool tsr_transfers_is_over(tsr_transfers *s, const tsr_transfer *t)
{
    pthread_mutex_lock(&s->lock);
    const bool over = t->over;
    pthread_mutex_unlock(&s->lock);
    return over;
}

void tsr_transfers_end(tsr_transfers *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_mutex_unlock(&s->lock);
    if (s->started) {
        (void)s->requests.curl.multi_wakeup(s->multi);
        pthread_join(s->thread, NULL);
    }
    while (s->n_idle > 0)
        s->requests.curl.easy_cleanup(s->idle[--s->n_idle]);
    if (s->multi != NULL)
        (void)s->requests.curl.multi_cleanup(s->multi);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
#endif
