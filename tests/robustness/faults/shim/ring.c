/* Replaces liburing with a ring that runs requests at submission and completes them in reverse order.
 *
 * Requests fail, or are cut short, at the same place in each run, also if the kernel has no io_uring. The inline
 * functions of liburing.h read the same memory as with the kernel's ring. */
#undef _FORTIFY_SOURCE
#include "faults.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef struct own_ring {
    unsigned sq_head, sq_tail, cq_head, cq_tail;
} own_ring;

int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    (void)flags;
    if (faults_strike(FAULT_ring, -1, "") != FAULTS_PASS)
        return -errno;
    unsigned room = 1;
    while (room < entries)
        room *= 2;
    const size_t bytes = sizeof(own_ring) + 64 + room * (sizeof(struct io_uring_sqe) + 2 * sizeof(struct io_uring_cqe));
    own_ring *const own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED)
        return -ENOMEM;
    *ring = (struct io_uring){.ring_fd = -1, .features = IORING_FEAT_EXT_ARG};
    ring->sq = (struct io_uring_sq){
        .khead = &own->sq_head,
        .ktail = &own->sq_tail,
        .sqes = (struct io_uring_sqe *)(void *)((char *)own + 64),
        .ring_mask = room - 1,
        .ring_entries = room,
        .ring_ptr = own,
        .ring_sz = bytes,
    };
    ring->cq = (struct io_uring_cq){
        .khead = &own->cq_head,
        .ktail = &own->cq_tail,
        .cqes = (struct io_uring_cqe *)(void *)(ring->sq.sqes + room),
        .ring_mask = 2 * room - 1,
        .ring_entries = 2 * room,
    };
    return 0;
}

void io_uring_queue_exit(struct io_uring *ring)
{
    munmap(ring->sq.ring_ptr, ring->sq.ring_sz);
}

int io_uring_register_buffers(struct io_uring *ring, const struct iovec *buffers, unsigned n)
{
    (void)ring;
    (void)buffers;
    (void)n;
    return faults_strike(FAULT_ring_register, -1, "") != FAULTS_PASS ? -errno : 0;
}

static int carry_out(const struct io_uring_sqe *entry)
{
    const bool write = entry->opcode == IORING_OP_WRITE || entry->opcode == IORING_OP_WRITE_FIXED;
    size_t size = entry->len;
    switch (faults_strike(write ? FAULT_ring_write : FAULT_ring_read, entry->fd, NULL)) {
    case FAULTS_FAIL:
        return -errno;
    case FAULTS_ZERO:
        return 0;
    case FAULTS_SHORT:
        size /= 2;
        break;
    case FAULTS_PASS:
        break;
    }
    const ssize_t n = faults_carry_out(write, entry->fd, (void *)(uintptr_t)entry->addr, size, (off_t)entry->off);
    return n < 0 ? -errno : (int)n;
}

static int submit(struct io_uring *ring)
{
    const unsigned begin = *ring->sq.khead, n = ring->sq.sqe_tail - begin;
    for (unsigned i = n; i-- > 0;) {
        const struct io_uring_sqe *const entry = &ring->sq.sqes[(begin + i) & ring->sq.ring_mask];
        const unsigned at = *ring->cq.ktail;
        ring->cq.cqes[at & ring->cq.ring_mask] =
            (struct io_uring_cqe){.user_data = entry->user_data, .res = carry_out(entry)};
        __atomic_store_n(ring->cq.ktail, at + 1, __ATOMIC_RELEASE);
    }
    __atomic_store_n(ring->sq.khead, begin + n, __ATOMIC_RELEASE);
    return (int)n;
}

int io_uring_submit(struct io_uring *ring)
{
    return faults_strike(FAULT_ring_submit, -1, "") != FAULTS_PASS ? -errno : submit(ring);
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned n)
{
    (void)n;
    return faults_strike(FAULT_ring_wait, -1, "") != FAULTS_PASS ? -errno : submit(ring);
}

int __io_uring_get_cqe(struct io_uring *ring, struct io_uring_cqe **done, unsigned submitted, unsigned n,
                       sigset_t *mask)
{
    (void)submitted;
    (void)n;
    (void)mask;
    const unsigned head = *ring->cq.khead;
    const bool empty = __atomic_load_n(ring->cq.ktail, __ATOMIC_ACQUIRE) == head;
    *done = empty ? NULL : &ring->cq.cqes[head & ring->cq.ring_mask];
    return empty ? -EAGAIN : 0;
}
