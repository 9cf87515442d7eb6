/* Owns the start and the end of threads that share a job. */
#include "common/threads.h"

#include <fenv.h>
#include <pthread.h>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

void tsr_set_float_mode(void)
{
    (void)fesetenv(FE_DFL_ENV);
#ifdef __SSE2__
    _mm_setcsr(0x1F80); /* no exception traps, to nearest even, subnormals neither flushed nor taken for zero */
#endif
}

typedef struct start {
    void *(*work)(void *context);
    void *context;
} start;

static void *begin(void *argument)
{
    const start *const s = argument;
    tsr_set_float_mode();
    return s->work(s->context);
}

unsigned tsr_run_threads(unsigned wanted, void *(*work)(void *context), void (*tell)(void *context), void *context)
{
    pthread_t threads[TSR_MAX_THREADS];
    start s = {work, context};
    unsigned started = 0;
    while (started < wanted && started < TSR_MAX_THREADS && pthread_create(&threads[started], NULL, begin, &s) == 0)
        started++;
    for (unsigned i = 0; i < started;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += TSR_PROGRESS_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_timedjoin_np(threads[i], NULL, &until) == 0)
            i++;
        else
            tell(context);
    }
    return started;
}

double tsr_seconds_since(const struct timespec *began)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - began->tv_sec) + 1e-9 * (double)(now.tv_nsec - began->tv_nsec);
}

double tsr_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
