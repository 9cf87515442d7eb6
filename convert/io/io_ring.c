/* Executes requests with io_uring, through liburing. */
#include "convert/io/io_ring.h"

#include <errno.h>
#include <stdlib.h>

#ifdef TSR_HAVE_LIBURING
#include <liburing.h>

enum { ENTRIES = TSR_IO_BATCHES * TSR_IO_REQUESTS };

struct tsr_io_ring {
    struct io_uring uring;
    bool registered; /* the memory is pinned once instead of for each request */
};

tsr_io_ring *tsr_io_ring_begin(void *memory, size_t bytes)
{
    tsr_io_ring *const ring = calloc(1, sizeof *ring);
    if (ring == NULL)
        return NULL;
    const int code = io_uring_queue_init(ENTRIES, &ring->uring, 0);
    if (code < 0) {
        free(ring);
        errno = -code;
        return NULL;
    }
    /* Registering may fail: users have a limit (ulimit -l), and the system pins at most 1 GiB in one piece. */
    const struct iovec all = {memory, bytes};
    ring->registered = bytes > 0 && io_uring_register_buffers(&ring->uring, &all, 1) == 0;
    return ring;
}

void tsr_io_ring_end(tsr_io_ring *ring)
{
    if (ring != NULL)
        io_uring_queue_exit(&ring->uring);
    free(ring);
}

bool tsr_io_ring_add(tsr_io_ring *ring, tsr_io_request *r)
{
    struct io_uring_sqe *const entry = io_uring_get_sqe(&ring->uring);
    if (entry == NULL)
        return false;
    const unsigned n = (unsigned)r->span;
    if (r->write && ring->registered)
        io_uring_prep_write_fixed(entry, r->fd, r->begin, n, r->at, 0);
    else if (r->write)
        io_uring_prep_write(entry, r->fd, r->begin, n, r->at);
    else if (ring->registered)
        io_uring_prep_read_fixed(entry, r->fd, r->begin, n, r->at, 0);
    else
        io_uring_prep_read(entry, r->fd, r->begin, n, r->at);
    io_uring_sqe_set_data(entry, r);
    return true;
}

void tsr_io_ring_submit(tsr_io_ring *ring)
{
    /* Requests that the system does not accept now (no memory, an interrupt) are submitted again by the next call.
     * Waiting submits, too. */
    (void)io_uring_submit(&ring->uring);
}

static void take(tsr_io_ring *ring, struct io_uring_cqe *done)
{
    tsr_io_request *const r = io_uring_cqe_get_data(done);
    r->result = done->res;
    r->batch->left--;
    io_uring_cqe_seen(&ring->uring, done);
}

bool tsr_io_ring_wait(tsr_io_ring *ring)
{
    struct io_uring_cqe *done;
    if (io_uring_peek_cqe(&ring->uring, &done) == 0) {
        take(ring, done);
        return true;
    }
    const int code = io_uring_submit_and_wait(&ring->uring, 1);
    if (code >= 0 || code == -EINTR || code == -EAGAIN || code == -EBUSY)
        return true;
    errno = -code;
    return false;
}

#else

tsr_io_ring *tsr_io_ring_begin(void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
    errno = 0; /* the process is out of memory, not the system */
    return NULL;
}

void tsr_io_ring_end(tsr_io_ring *ring)
{
    (void)ring;
}

bool tsr_io_ring_add(tsr_io_ring *ring, tsr_io_request *request)
{
    (void)ring;
    (void)request;
    return false;
}

void tsr_io_ring_submit(tsr_io_ring *ring)
{
    (void)ring;
}

bool tsr_io_ring_wait(tsr_io_ring *ring)
{
    (void)ring;
    return false;
}

#endif
