/* Threads that share a job, and how long it has taken. */
#ifndef TSR_COMMON_THREADS_H
#define TSR_COMMON_THREADS_H

#include <time.h>

enum { TSR_MAX_THREADS = 256, TSR_PROGRESS_MS = 200 };

/* Sets this thread's floating-point mode to the one in which every result is defined: to nearest even, with subnormals.
 * A library that was loaded before, or a caller, may have left another (flush to zero is one that "fast math" sets). */
void tsr_set_float_mode(void);

/* Runs work(context) on `wanted` threads, TSR_MAX_THREADS at most, or on as many as can be started; each in that mode;
 * returns their number once all have ended. 0: none could be started. Meanwhile the calling thread calls tell(context)
 * every TSR_PROGRESS_MS. */
unsigned tsr_run_threads(unsigned wanted, void *(*work)(void *context), void (*tell)(void *context), void *context);

/* Of CLOCK_MONOTONIC. */
double tsr_seconds_since(const struct timespec *began);

/* Seconds of a clock that only goes forward. */
double tsr_now(void);

#endif
