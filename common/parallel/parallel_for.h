/* A loop over threads. */
#pragma once

#include "common/atomics.h"
#include "common/parallel/threads.h"
#include "common/status.h"

#include <stddef.h>

/* Runs one iteration. `worker` is the number of the thread, for callers with a buffer per thread. */
typedef tsr_status tsr_parallel_fn(void *context, size_t i, size_t worker, tsr_err *err);

/* Returns the most workers that tsr_parallel_for uses for n iterations: 1 .. TSR_MAX_THREADS. */
size_t tsr_parallel_workers(size_t n, uint64_t threads);

/* Calls run(context, i, worker, ..) once for each i < n, in any order, on the calling thread and up to threads - 1
 * others. Returns the first failure, after which no iteration begins. TSR_E_CANCELLED: *cancel (may be NULL) was set
 * before the last iteration began. */
tsr_status tsr_parallel_for(size_t n, uint64_t threads, const atomic_bool *cancel, tsr_parallel_fn *run, void *context,
                            tsr_err *err);
