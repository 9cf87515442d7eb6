/* Threads of a job, the run options of its caller, and its progress. */
#pragma once

#include "common/atomics.h"
#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { TSR_MAX_THREADS = 256, TSR_PROGRESS_MS = 200 };

/* Default of --memory: the bytes of memory that a job may take. */
#define TSR_DEFAULT_MEMORY ((uint64_t)2 << 30)

/* Progress of a job. */
typedef struct tsr_progress {
    const char *phase; /* the current activity: "verifying", "converting", "comparing"; NULL: only items are counted,
                        * and `items` names the last one */
    uint64_t bytes_done, bytes_total; /* read in this phase */
    uint64_t items_done, items_total; /* total 0: items are not counted */
    const char *items;                /* the counted items: "tensors", "files"; "layer" if `phase` is NULL */
    double seconds;                   /* since the phase began */
    bool sends;                       /* the output is sent to a server */
    uint64_t bytes_sent;              /* in this phase */
} tsr_progress;

/* Run options of every long job. */
typedef struct tsr_run_options {
    uint64_t threads;          /* requested workers; fewer run if `memory` is too small for them */
    uint64_t memory;           /* bytes */
    const atomic_bool *cancel; /* set by the caller to stop after work in progress; may be NULL */
    void (*progress)(const tsr_progress *progress, void *data); /* called by one thread at a time; may be NULL */
    void *progress_data;
} tsr_run_options;

/* Returns the number of online processors, at least 1: the default number of threads. */
unsigned tsr_cpu_count(void);

/* Returns true if the caller wants the job to stop. `cancel` may be NULL. */
bool tsr_is_cancelled(const atomic_bool *cancel);

/* Reports the progress of a job that began at `began`, if the caller has a callback. */
void tsr_tell_progress(const tsr_run_options *options, const tsr_progress *progress, const struct timespec *began);

/* Chooses the number of workers: the requested number, at most TSR_MAX_THREADS, and as many as fit in memory if the job
 * takes `fixed` bytes and each worker `each`. TSR_E_NOMEM: not even one fits; the message has the required size. */
tsr_status tsr_choose_threads(const tsr_run_options *options, uint64_t fixed, uint64_t each, unsigned *threads,
                              tsr_err *err);

/* Sets this thread's floating-point mode to the one for which every result is defined: round to nearest even, with
 * subnormals. A caller, or a library built with "fast math", may have left another mode, such as flush to zero. */
void tsr_set_float_mode(void);

/* Runs work(context) on `wanted` threads, at most TSR_MAX_THREADS, each in the mode of tsr_set_float_mode; on fewer if
 * no more can be started. The calling thread calls tell(context) every TSR_PROGRESS_MS until all have ended. Returns
 * how many ran; 0: none could be started, and errno has the reason. */
unsigned tsr_run_threads(unsigned wanted, void *(*work)(void *context), void (*tell)(void *context), void *context);

/* Returns the seconds since `began`, a time of CLOCK_MONOTONIC. */
double tsr_seconds_since(const struct timespec *began);

/* Returns the seconds of a monotonic clock. */
double tsr_now(void);
