/* Threads that share a job, and how long it has taken. */
#ifndef TSR_FORMATS_WORKERS_H
#define TSR_FORMATS_WORKERS_H

#include <time.h>

enum { TSR_MAX_THREADS = 256, TSR_PROGRESS_MS = 200 };

/* Runs work(context) on `wanted` threads, TSR_MAX_THREADS at most, or on as many as can be started; returns their
 * number once all have ended. 0: none could be started. Meanwhile the calling thread calls tell(context) every
 * TSR_PROGRESS_MS. */
unsigned tsr_run_threads(unsigned wanted, void *(*work)(void *context), void (*tell)(void *context), void *context);

/* Of CLOCK_MONOTONIC. */
double tsr_seconds_since(const struct timespec *began);

#endif
