/* Owns the start and the end of threads that share a job. */
#include "formats/workers.h"

#include <pthread.h>

unsigned tsr_run_threads(unsigned wanted, void *(*work)(void *context), void (*tell)(void *context), void *context)
{
    pthread_t threads[TSR_MAX_THREADS];
    unsigned started = 0;
    while (started < wanted && started < TSR_MAX_THREADS && pthread_create(&threads[started], NULL, work, context) == 0)
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
