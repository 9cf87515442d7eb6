/* Reads and writes the bytes of units, directly and through the page cache. */
#include "convert/io/io.h"

#include "common/checked.h"
#include "common/file.h"
#include "convert/io/io_ring.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct tsr_io {
    tsr_io_ring *ring; /* NULL: each request is executed immediately */
    bool broken;
};

uint64_t tsr_io_page(void)
{
    const long page = sysconf(_SC_PAGESIZE);
    return page < 4096 ? 4096 : (uint64_t)page;
}

bool tsr_io_has_ring(void)
{
    tsr_io_ring *const ring = tsr_io_ring_begin(NULL, 0);
    tsr_io_ring_end(ring);
    return ring != NULL;
}

tsr_io *tsr_io_begin(bool ring, void *memory, size_t bytes)
{
    tsr_io *const io = calloc(1, sizeof *io);
    if (io != NULL && ring)
        io->ring = tsr_io_ring_begin(memory, bytes);
    return io;
}

void tsr_io_end(tsr_io *io)
{
    if (io != NULL)
        tsr_io_ring_end(io->ring);
    free(io);
}

/* ---- positions of buffers ---- */

/* Returns true if bytes of a file bypass the page cache. Numbers of up to 8 bytes are aligned in memory if they are
 * in the file. */
static bool is_direct(const tsr_io_file *f, uint64_t offset, uint64_t size)
{
    return f->direct >= 0 && size >= TSR_IO_LEAST && offset % 8 == 0;
}

uint64_t tsr_io_room(uint64_t bytes)
{
    return tsr_round_up(bytes, 64) + (bytes < TSR_IO_LEAST ? 0 : 3 * tsr_io_page());
}

void *tsr_io_place(const tsr_io_file *f, uint64_t offset, uint64_t size, char **memory)
{
    const uint64_t page = tsr_io_page();
    const bool direct = is_direct(f, offset, size);
    char *const data = (char *)tsr_round_up((uintptr_t)*memory, direct ? page : 64) + (direct ? offset % page : 0);
    *memory = (char *)tsr_round_up((uintptr_t)(data + size), direct ? page : 64);
    return data;
}

/* ---- requests ---- */

static void carry_out(tsr_io_request *r)
{
    do {
        r->result =
            r->write ? pwrite(r->fd, r->begin, r->span, (off_t)r->at) : pread(r->fd, r->begin, r->span, (off_t)r->at);
    } while (r->result < 0 && errno == EINTR);
    r->result = r->result < 0 ? -errno : r->result;
    r->batch->left--;
}

static void begin(tsr_io *io, tsr_io_batch *b, const tsr_io_request *request)
{
    tsr_io_request *const r = &b->requests[b->n++];
    *r = *request;
    r->batch = b;
    if (r->file.remote != NULL) {
        r->reading = tsr_remote_begin(r->file.remote, r->data, r->size, r->offset);
        return;
    }
    b->left++;
    if (io->ring == NULL || !tsr_io_ring_add(io->ring, r))
        carry_out(r);
}

void tsr_io_read(tsr_io *io, tsr_io_batch *b, const tsr_io_file *f, void *data, uint64_t size, uint64_t offset)
{
    tsr_io_request r = {.file = *f, .data = data, .size = size, .offset = offset, .fd = f->fd};
    r.begin = data;
    r.span = size;
    r.at = offset;
    if (is_direct(f, offset, size)) {
        const uint64_t page = tsr_io_page(), before = offset % page;
        r.fd = f->direct;
        r.begin -= before;
        r.at -= before;
        r.span = tsr_round_up(before + size, page);
    }
    begin(io, b, &r);
}

tsr_status tsr_io_write_cached(const tsr_io_file *f, const void *data, uint64_t size, uint64_t offset, tsr_err *err)
{
    for (uint64_t done = 0; done < size; done += TSR_IO_PIECE) {
        const uint64_t n = tsr_min_u64(TSR_IO_PIECE, size - done);
        TSR_TRY(tsr_write_at(f->fd, f->name, (const char *)data + done, n, offset + done, err));
    }
    return TSR_OK;
}

bool tsr_io_writes_directly(const tsr_io_file *f, const void *data, uint64_t size, uint64_t offset)
{
    const uint64_t page = tsr_io_page();
    return is_direct(f, offset, size) && (uintptr_t)data % page == offset % page;
}

tsr_status tsr_io_write(tsr_io *io, tsr_io_batch *b, const tsr_io_file *f, void *data, uint64_t size, uint64_t offset,
                        tsr_err *err)
{
    const uint64_t page = tsr_io_page(), low = tsr_round_up(offset, page),
                   high = offset + size - (offset + size) % page;
    char *const from = data;
    if (!tsr_io_writes_directly(f, data, size, offset))
        return tsr_io_write_cached(f, data, size, offset, err);
    if (low > offset)
        TSR_TRY(tsr_write_at(f->fd, f->name, from, low - offset, offset, err));
    if (offset + size > high)
        TSR_TRY(tsr_write_at(f->fd, f->name, from + (high - offset), offset + size - high, high, err));
    const tsr_io_request r = {
        .file = *f,
        .write = true,
        .data = from + (low - offset),
        .size = high - low,
        .offset = low,
        .fd = f->direct,
        .begin = from + (low - offset),
        .span = high - low,
        .at = low,
    };
    begin(io, b, &r);
    return TSR_OK;
}

void tsr_io_submit(tsr_io *io)
{
    if (io->ring != NULL)
        tsr_io_ring_submit(io->ring);
}

bool tsr_io_is_broken(const tsr_io *io)
{
    return io->broken;
}

/* Some file systems accept O_DIRECT, but not every direct request. */
static bool is_refusal(int64_t result)
{
    return result == -EINVAL || result == -EOPNOTSUPP || result == -EAGAIN || result == -EINTR;
}

/* Checks the result of a request. An incomplete request is finished through the page cache; a failure there has the
 * system's error message. */
static tsr_status finish(const tsr_io_request *r, tsr_err *err)
{
    if (r->file.remote != NULL)
        return tsr_remote_end(r->reading, err);
    const uint64_t before = r->offset - r->at;
    if (r->result < 0 && !is_refusal(r->result)) {
        errno = (int)-r->result;
        return tsr_fail_errno(err, "%s: cannot %s %llu bytes at offset %llu", r->file.name, r->write ? "write" : "read",
                              U64(r->size), U64(r->offset));
    }
    const uint64_t got = r->result < 0 ? 0 : (uint64_t)r->result;
    const uint64_t done = got < before ? 0 : tsr_min_u64(got - before, r->size);
    if (done == r->size)
        return TSR_OK;
    return r->write ? tsr_write_at(r->file.fd, r->file.name, r->data + done, r->size - done, r->offset + done, err)
                    : tsr_read_at(r->file.fd, r->file.name, r->data + done, r->size - done, r->offset + done, err);
}

tsr_status tsr_io_wait(tsr_io *io, tsr_io_batch *b, tsr_err *err)
{
    tsr_status status = TSR_OK;
    while (b->left > 0) {
        io->broken = io->broken || !tsr_io_ring_wait(io->ring);
        if (io->broken)
            return tsr_fail_errno(err, "cannot wait for io_uring (--io buffered does not use it)");
    }
    for (unsigned i = 0; i < b->n; i++) {
        const tsr_io_request *const r = &b->requests[i];
        if (status == TSR_OK)
            status = finish(r, err);
        else if (r->file.remote != NULL) /* its memory is in use until it has ended */
            (void)!tsr_remote_end(r->reading, NULL);
    }
    b->n = 0;
    return status;
}
