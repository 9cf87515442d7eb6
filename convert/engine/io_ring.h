/* Requests that the system carries out while the caller computes: io_uring, where Tessera is built with liburing and the kernel
 * allows it. */
#ifndef TSR_CONVERT_ENGINE_IO_RING_H
#define TSR_CONVERT_ENGINE_IO_RING_H

#include "convert/engine/io.h"

typedef struct tsr_io_ring tsr_io_ring;

/* NULL with errno set where it cannot be had. `memory` is where all data will lie. */
tsr_io_ring *tsr_io_ring_begin(void *memory, size_t bytes);

/* Ends once all that is under way has ended. NULL is fine. */
void tsr_io_ring_end(tsr_io_ring *ring);

/* Adds a request; false: there is no room for one. */
bool tsr_io_ring_add(tsr_io_ring *ring, tsr_io_request *request);

/* Hands what was added to the system. */
void tsr_io_ring_submit(tsr_io_ring *ring);

/* Waits for any request and notes its result; false with errno set where waiting itself fails. */
bool tsr_io_ring_wait(tsr_io_ring *ring);

#endif
