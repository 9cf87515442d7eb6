/* Declares the operations that MPI provides to the processes of one job.
 *
 * The module tessera_mpi.so (transport_mpi.c) is linked with MPI. It is loaded only for --mpi, so that the tool also
 * works, and starts quickly, without MPI. */
#pragma once

#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Number of counters on rank 0. They begin at 0. */
enum { TSR_COUNTERS = 2 };

/* An operation returns false if MPI reports an error. All ranks must call gather, combine and end in the same order. A
 * rank that waits in them sleeps. */
typedef struct tsr_transport {
    unsigned rank, size;
    /* Gives every rank the data of all: all[size * each]. */
    bool (*gather)(const void *mine, void *all, size_t each);
    /* Replaces the data of every rank by the bitwise OR of the data of all. */
    bool (*combine)(void *data, size_t size);
    /* Adds to a counter of rank 0, atomically. *before receives the previous value. One call at a time per rank. */
    bool (*fetch_add)(unsigned counter, uint64_t add, uint64_t *before);
    void (*end)(void);
} tsr_transport;

/* The function that the module exports. Returns NULL, with a reason in `why`, if mpirun did not start the process. */
typedef const tsr_transport *tsr_transport_begin_fn(char *why, size_t size);
#define TSR_TRANSPORT_BEGIN "tsr_transport_begin"

/* Loads the module and starts MPI. TSR_E_UNSUPPORTED: there is no module, or MPI cannot be started. */
tsr_status tsr_transport_open(const tsr_transport **transport, tsr_err *err);
