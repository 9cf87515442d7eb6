/* A loop over threads. */
#ifndef TSR_COMMON_PARALLEL_PARALLEL_FOR_H
#define TSR_COMMON_PARALLEL_PARALLEL_FOR_H

#include "common/atomics.h"
#include "common/parallel/threads.h"
#include "common/status.h"

#include <stddef.h>

/* One turn of the loop. `worker` is the number of the thread that runs it, for callers with a buffer per thread. */
typedef tsr_status tsr_parallel_fn(void *context, size_t i, size_t worker, tsr_err *err);

/* The most workers that tsr_parallel_for uses for n turns: 1 .. TSR_MAX_THREADS. */
size_t tsr_parallel_workers(size_t n, uint64_t threads);

/* Calls run(context, i, worker, ..) once for each i < n, in any order, on the calling thread and up to threads - 1
 * others. The first failure is returned, and no turn is begun after it. TSR_E_CANCELLED: *cancel (may be NULL) was set
 * before the last turn began. */
tsr_status tsr_parallel_for(size_t n, uint64_t threads, const atomic_bool *cancel, tsr_parallel_fn *run, void *context,
                            tsr_err *err) TSR_WARN_UNUSED;

#endif
