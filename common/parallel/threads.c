/* Starts and joins threads that share a job. */
#include "common/parallel/threads.h"

#include "common/checked.h"

#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <unistd.h>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

unsigned tsr_cpu_count(void)
{
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    return cpus < 1 ? 1 : (unsigned)cpus;
}

bool tsr_is_cancelled(const atomic_bool *cancel)
{
    return cancel != NULL && atomic_load(cancel);
}

tsr_status tsr_choose_threads(const tsr_run_options *options, uint64_t fixed, uint64_t each, unsigned *threads,
                              tsr_err *err)
{
    const uint64_t need = fixed + each;
    if (need > options->memory)
        return tsr_fail_as(err, TSR_ERROR_MEMORY, TSR_E_NOMEM,
                           "--memory %llu is too small for this job: one thread needs %llu (%.1f MiB)",
                           (unsigned long long)options->memory, (unsigned long long)need, (double)need / 1048576);
    const uint64_t affordable = (options->memory - fixed) / tsr_max_u64(1, each);
    *threads = (unsigned)tsr_min_u64(affordable, tsr_min_u64(options->threads, TSR_MAX_THREADS));
    return TSR_OK;
}

void tsr_set_float_mode(void)
{
    (void)fesetenv(FE_DFL_ENV);
#ifdef __SSE2__
    _mm_setcsr(0x1F80); /* exceptions masked; round to nearest even; subnormal operands and results are kept */
#elif defined __aarch64__
    /* FPCR: the same, and bits that fesetenv does not reset: NaN payloads, subnormal and IEEE half precision are
     * kept. */
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
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
    int code = 0;
    while (started < wanted && started < TSR_MAX_THREADS &&
           (code = pthread_create(&threads[started], NULL, begin, &s)) == 0)
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
    errno = code;
    return started;
}

double tsr_seconds_since(const struct timespec *began)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - began->tv_sec) + 1e-9 * (double)(now.tv_nsec - began->tv_nsec);
}

void tsr_tell_progress(const tsr_run_options *options, const tsr_progress *progress, const struct timespec *began)
{
    tsr_progress p = *progress;
    p.seconds = tsr_seconds_since(began);
    if (options->progress != NULL)
        options->progress(&p, options->progress_data);
}

double tsr_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
