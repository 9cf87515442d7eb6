/* Declares requests that the system executes while the caller computes: io_uring, if Tessera is built with liburing and
 * the kernel allows it. */
#pragma once

#include "convert/io/io.h"

typedef struct tsr_io_ring tsr_io_ring;

/* Begins a ring for requests whose data are in `memory`. Returns NULL with errno set if that fails. */
tsr_io_ring *tsr_io_ring_begin(void *memory, size_t bytes);

/* Waits for the requests under way, and frees the ring. NULL is fine. */
void tsr_io_ring_end(tsr_io_ring *ring);

/* Adds a request. Returns false if there is no room for it. */
bool tsr_io_ring_add(tsr_io_ring *ring, tsr_io_request *request);

/* Submits the requests that were added. */
void tsr_io_ring_submit(tsr_io_ring *ring);

/* Waits for any request and records its result. Returns false with errno set if the wait fails. */
bool tsr_io_ring_wait(tsr_io_ring *ring);
