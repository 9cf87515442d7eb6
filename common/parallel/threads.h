/* Threads that share a job, what a caller asks of the job, and how long it has taken. */
#ifndef TSR_COMMON_PARALLEL_THREADS_H
#define TSR_COMMON_PARALLEL_THREADS_H

#include "common/atomics.h"
#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { TSR_MAX_THREADS = 256, TSR_PROGRESS_MS = 200 };

/* Bytes of memory that a job may take unless its caller sets a number: the default of --memory. */
#define TSR_DEFAULT_MEMORY ((uint64_t)2 << 30)

/* How far a job has come. */
typedef struct tsr_progress {
    const char *phase; /* the current activity: "verifying", "converting", "comparing"; NULL: only items are
                                         counted, not bytes, and the last one done is named */
    uint64_t bytes_done, bytes_total; /* read in this phase */
    uint64_t items_done, items_total; /* a total of 0: the job does not count them */
    const char *items;                /* what is counted: "tensors", "files"; "layer" without a phase */
    double seconds;                   /* since the phase began */
} tsr_progress;

/* Run options of every long job. */
typedef struct tsr_run_options {
    uint64_t threads;          /* workers wanted; fewer run when `memory` is too small for them */
    uint64_t memory;           /* bytes */
    const atomic_bool *cancel; /* set by the caller to stop after what is in flight; may be NULL */
    void (*progress)(const tsr_progress *progress, void *data); /* one call at a time; may be NULL */
    void *progress_data;
} tsr_run_options;

/* Processors that are online, at least 1: how many threads a job uses unless the user sets a number. */
unsigned tsr_cpu_count(void);

/* Returns true if the caller wants the job to stop. `cancel` may be NULL. */
bool tsr_is_cancelled(const atomic_bool *cancel);

/* Tells the caller, if it wants to know, how far a job that began at `began` has come. */
void tsr_tell_progress(const tsr_run_options *options, const tsr_progress *progress, const struct timespec *began);

/* How many workers may run: the number that is wanted, at most TSR_MAX_THREADS, and no more than the memory holds when
 * the job takes `fixed` bytes and each worker `each`. TSR_E_NOMEM: not one fits; the message says what it takes. */
tsr_status tsr_choose_threads(const tsr_run_options *options, uint64_t fixed, uint64_t each, unsigned *threads,
                              tsr_err *err) TSR_WARN_UNUSED;

/* Sets this thread's floating-point mode to the one in which every result is defined: to nearest even, with subnormals.
 * A caller, or a library that was built with "fast math", may have left another mode, such as flush to zero. */
void tsr_set_float_mode(void);

/* Runs work(context) on `wanted` threads, at most TSR_MAX_THREADS, each in the mode of tsr_set_float_mode; on fewer when
 * no more can be started. The calling thread calls tell(context) every TSR_PROGRESS_MS until all have ended. Returns
 * how many ran; 0: none could be started, and errno says why. */
unsigned tsr_run_threads(unsigned wanted, void *(*work)(void *context), void (*tell)(void *context), void *context);

/* Seconds since `began`, a time of CLOCK_MONOTONIC. */
double tsr_seconds_since(const struct timespec *began);

/* Seconds of a clock that only goes forward. */
double tsr_now(void);

#endif
