/* Finds, computes and drops factors under one lock. */
#include "quantize/gptq/factor_cache.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct slot {
    const unsigned char *h; /* NULL: empty */
    tsr_hessian_factor factor;
    bool ready;
    unsigned users; /* units that use it or wait for it */
    uint64_t last;  /* the time of its last use */
} slot;

struct tsr_factor_cache {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    slot slots[TSR_FACTORS];
    uint64_t threads, time;
};

tsr_factor_cache *tsr_factor_cache_new(void)
{
    tsr_factor_cache *const c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    c->threads = 1;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    return c;
}

void tsr_factor_cache_set_threads(tsr_factor_cache *cache, uint64_t threads)
{
    cache->threads = threads;
}

/* Returns the slot of `h`, or else an empty one or the one that was unused for the longest time; NULL: all are in
 * use. */
static slot *find_slot(tsr_factor_cache *c, const unsigned char *h)
{
    slot *found = NULL;
    for (size_t i = 0; i < TSR_FACTORS; i++) {
        slot *const s = &c->slots[i];
        if (s->h == h)
            return s;
        if (s->users == 0 && (found == NULL || s->last < found->last))
            found = s;
    }
    return found;
}

/* Computes the factor of a slot. The lock is open meanwhile. */
static tsr_status fill(tsr_factor_cache *c, slot *s, size_t cols, const char *what, const tsr_cpu_kernels *kernels,
                       tsr_err *err)
{
    tsr_hessian_factor made = {.cols = 0};
    tsr_hessian_factor_free(&s->factor);
    (void)pthread_mutex_unlock(&c->lock);
    const tsr_status status = tsr_hessian_factorize(&made, s->h, cols, what, kernels, c->threads, err);
    (void)pthread_mutex_lock(&c->lock);
    s->factor = made;
    s->ready = status == TSR_OK;
    if (status != TSR_OK)
        s->h = NULL;
    (void)pthread_cond_broadcast(&c->changed);
    return status;
}

tsr_status tsr_factor_cache_take(tsr_factor_cache *c, const unsigned char *h, size_t cols, const char *what,
                                 const tsr_cpu_kernels *kernels, const tsr_hessian_factor **factor, tsr_err *err)
{
    slot *s;
    tsr_status status = TSR_OK;
    (void)pthread_mutex_lock(&c->lock);
    while ((s = find_slot(c, h)) == NULL || (s->h == h && !s->ready))
        (void)pthread_cond_wait(&c->changed, &c->lock);
    s->users++;
    if (s->h != h) {
        s->h = h;
        s->ready = false;
        status = fill(c, s, cols, what, kernels, err);
    }
    s->last = ++c->time;
    s->users -= status != TSR_OK;
    (void)pthread_mutex_unlock(&c->lock);
    *factor = &s->factor;
    return status;
}

void tsr_factor_cache_release(tsr_factor_cache *c, const tsr_hessian_factor *factor)
{
    (void)pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < TSR_FACTORS; i++) {
        if (&c->slots[i].factor == factor)
            c->slots[i].users--;
    }
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

void tsr_factor_cache_free(tsr_factor_cache *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < TSR_FACTORS; i++)
        tsr_hessian_factor_free(&c->slots[i].factor);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
