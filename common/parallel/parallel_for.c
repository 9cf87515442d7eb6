/* Runs the iterations of a loop on threads. Each thread takes the next iteration under a lock; iterations are so long
 * that the lock costs nothing. */
#include "common/parallel/parallel_for.h"

#include "common/checked.h"
#include "common/parallel/first_failure.h"

#include <pthread.h>
#include <stdbool.h>

typedef struct loop {
    size_t n;
    const atomic_bool *cancel;
    tsr_parallel_fn *run;
    void *context;
    pthread_mutex_t lock; /* guards the rest */
    size_t next, workers;
    tsr_first_failure failure;
} loop;

static bool take(loop *l, size_t *i)
{
    pthread_mutex_lock(&l->lock);
    if (tsr_is_cancelled(l->cancel))
        tsr_note_failure(&l->failure, TSR_E_CANCELLED, &(tsr_err){.msg = "interrupted"});
    const bool taken = l->failure.status == TSR_OK && l->next < l->n;
    if (taken)
        *i = l->next++;
    pthread_mutex_unlock(&l->lock);
    return taken;
}

static void *work(void *argument)
{
    loop *const l = argument;
    tsr_set_float_mode();
    pthread_mutex_lock(&l->lock);
    const size_t worker = l->workers++;
    pthread_mutex_unlock(&l->lock);
    for (size_t i; take(l, &i);) {
        tsr_err err = {0};
        const tsr_status status = l->run(l->context, i, worker, &err);
        if (status != TSR_OK)
            tsr_note_failure_locking(&l->failure, &l->lock, status, &err);
    }
    return NULL;
}

size_t tsr_parallel_workers(size_t n, uint64_t threads)
{
    return tsr_max_u64(tsr_min_u64(tsr_min_u64(n, threads), TSR_MAX_THREADS), 1);
}

tsr_status tsr_parallel_for(size_t n, uint64_t threads, const atomic_bool *cancel, tsr_parallel_fn *run, void *context,
                            tsr_err *err)
{
    loop l = {.n = n, .cancel = cancel, .run = run, .context = context, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t others[TSR_MAX_THREADS];
    size_t started = 0;
    while (started + 1 < tsr_parallel_workers(n, threads) && pthread_create(&others[started], NULL, work, &l) == 0)
        started++;
    work(&l);
    for (size_t i = 0; i < started; i++)
        pthread_join(others[i], NULL);
    return tsr_return_failure(&l.failure, err);
}
