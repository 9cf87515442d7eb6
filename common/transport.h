/* Messages between the processes of one job, which are numbered from 0. What carries them is loaded when it is asked for, so
 * that a tool without it starts as quickly, and works as well: tessera_mpi.so (transport_mpi.c) is linked with MPI. */
#ifndef TSR_COMMON_TRANSPORT_H
#define TSR_COMMON_TRANSPORT_H

#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Thread-safe, but for `end`. A pair of processes has as many channels as it likes, by number; in each, messages arrive in
 * their order, and what is received has just the size that was sent. Waiting takes no processor. False: the other side, or
 * the way there, is gone. */
typedef struct tsr_transport {
    unsigned rank, size;
    bool (*send)(unsigned to, int channel, const void *data, size_t size);
    bool (*receive)(unsigned from, int channel, void *data, size_t size);
    /* Gives every process what all have: all[size * each]. All have to call it. */
    bool (*gather)(const void *mine, void *all, size_t each);
    void (*end)(void); /* all have to call it */
} tsr_transport;

/* What the module is asked for by this name; NULL, with a reason in `why`, where the job was not started for it. */
typedef const tsr_transport *tsr_transport_begin_fn(char *why, size_t size);
#define TSR_TRANSPORT_BEGIN "tsr_transport_begin"

/* Loads what MPI starts processes for. TSR_E_UNSUPPORTED: this Tessera has it not, or mpirun has not started it. */
tsr_status tsr_transport_open(const tsr_transport **transport, tsr_err *err) TSR_WARN_UNUSED;

#endif
