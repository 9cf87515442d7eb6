/* Declares the reads and writes of units: batches of requests, direct or through the page cache.
 *
 * A worker has several units in progress: while it computes one, the input of the next is read and the output of the
 * last is written. Each unit has a batch of requests. tsr_io_read and tsr_io_write begin them, tsr_io_submit passes
 * them to the system, and tsr_io_wait waits for all of them.
 *
 * A file may have a second descriptor that bypasses the page cache (O_DIRECT). A direct read covers whole pages, from
 * the page of its first byte to that of its last one. tsr_io_place lays out buffers so that memory and file have the
 * same offset within a page, and nothing is copied. A direct write covers whole pages of the file; partial pages at its
 * ends are written through the page cache. So every page is either written directly, once, or only through the page
 * cache. Small requests go through the page cache. */
#pragma once

#include "common/status.h"
#include "formats/remote/remote.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Smaller requests go through the page cache, which does read-ahead and combines writes. */
#define TSR_IO_LEAST ((uint64_t)128 << 10)

/* Bytes per write through the page cache. They stay in a processor's cache while they are made, digested and
 * copied. Linux allocates pages as large as a write for it; from 2 MiB on it may have to search for them. */
#define TSR_IO_PIECE ((uint64_t)256 << 10)

enum {
    TSR_IO_REQUESTS = 32, /* most requests of a batch */
    TSR_IO_BATCHES = 3,   /* batches of a worker: one for reading, one for computing, one for writing */
};

/* The mode of --io. */
typedef enum tsr_io_mode { TSR_IO_AUTO, TSR_IO_BUFFERED, TSR_IO_DIRECT } tsr_io_mode;

typedef struct tsr_io_file {
    int fd;                        /* -1: on a server */
    const tsr_remote_file *remote; /* NULL: on disk */
    int direct;                    /* the same file, opened with O_DIRECT; -1: page cache only */
    const char *name;              /* for messages */
} tsr_io_file;

typedef struct tsr_io_request {
    struct tsr_io_batch *batch;
    tsr_io_file file;
    bool write;
    char *data; /* [size]: the bytes of the file from `offset` on */
    uint64_t size, offset;
    /* A request of the system. */
    int fd;
    char *begin;
    uint64_t span, at;
    int64_t result;              /* bytes, or a negative errno */
    tsr_remote_reading *reading; /* the read of a file on a server */
} tsr_io_request;

/* The requests of a unit. All zeroes: none. */
typedef struct tsr_io_batch {
    tsr_io_request requests[TSR_IO_REQUESTS];
    unsigned n, left; /* all requests, and those in progress */
} tsr_io_batch;

typedef struct tsr_io tsr_io;

/* Begins the I/O of a worker whose buffers are in `memory`. `ring` selects io_uring, which executes requests while the
 * worker computes. Without io_uring, each request is executed immediately. Returns NULL when out of memory. */
tsr_io *tsr_io_begin(bool ring, void *memory, size_t bytes);

/* Waits for the requests under way, and frees the I/O. NULL is fine. */
void tsr_io_end(tsr_io *io);

/* Returns true if the system has io_uring and this process may use it. */
bool tsr_io_has_ring(void);

/* Returns the size of a page, to which direct requests are aligned. */
uint64_t tsr_io_page(void);

/* Returns the most memory that a buffer of `bytes` can need with the alignment of tsr_io_place. */
uint64_t tsr_io_room(uint64_t bytes);

/* Returns an aligned buffer for bytes [offset, offset + size) of the file, and advances *memory past it. */
void *tsr_io_place(const tsr_io_file *file, uint64_t offset, uint64_t size, char **memory);

/* Begins to read these bytes of the file into a buffer from tsr_io_place. The batch must have room for a request. */
void tsr_io_read(tsr_io *io, tsr_io_batch *batch, const tsr_io_file *file, void *data, uint64_t size, uint64_t offset);

/* Begins to write these bytes from a buffer from tsr_io_place. Other buffers are written through the page cache. */
tsr_status tsr_io_write(tsr_io *io, tsr_io_batch *batch, const tsr_io_file *file, void *data, uint64_t size,
                        uint64_t offset, tsr_err *err);

/* Returns true if tsr_io_write would write these bytes directly, except for partial pages at the ends. */
bool tsr_io_writes_directly(const tsr_io_file *file, const void *data, uint64_t size, uint64_t offset);

/* Writes these bytes through the page cache, immediately. The kernel writes them back later, at the latest at the
 * fsync. sync_file_range would make the thread wait while others read from that disk. */
tsr_status tsr_io_write_cached(const tsr_io_file *file, const void *data, uint64_t size, uint64_t offset, tsr_err *err);

/* Passes the requests that were begun to the system. */
void tsr_io_submit(tsr_io *io);

/* Returns true if the system no longer reports the results of requests. Then nothing can be read or written, and the
 * system may still access the memory. */
bool tsr_io_is_broken(const tsr_io *io);

/* Waits until all requests of the batch are done, and empties it. Returns the first failure, with the message of
 * tsr_read_at or tsr_write_at. */
tsr_status tsr_io_wait(tsr_io *io, tsr_io_batch *batch, tsr_err *err);
