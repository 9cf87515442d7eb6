/* Times a kernel and memcpy alternately in one process, and keeps the best repetition of each. Other processes can
 * only make a repetition slower. */
#pragma once

#include <string.h>
#include <time.h>

enum { TURNS = 9 };

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef void bench_fn(void *arg);

typedef struct bench_result {
    double gbs, memcpy_gbs; /* bytes read and written, per second */
} bench_result;

/* Times the work and memcpy. `moved` is the number of bytes that the work reads and writes. memcpy copies moved / 2
 * bytes from `from`, `unit` at a time, each time to `to`. */
static inline bench_result bench(bench_fn *work, void *arg, size_t moved, size_t unit, void *to, const char *from)
{
    double ours = 1e9, theirs = 1e9;
    work(arg);
    for (int turn = 0; turn < TURNS; turn++) {
        double began = now();
        for (size_t at = 0; at < moved / 2; at += unit)
            memcpy(to, from + at, unit < moved / 2 - at ? unit : moved / 2 - at);
        const double copied = now() - began;
        began = now();
        work(arg);
        const double worked = now() - began;
        theirs = copied < theirs ? copied : theirs;
        ours = worked < ours ? worked : ours;
    }
    return (bench_result){1e-9 * (double)moved / ours, 1e-9 * (double)moved / theirs};
}
