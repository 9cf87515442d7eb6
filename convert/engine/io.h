/* How the bytes of units get from files into memory and back.
 *
 * A worker has several units under way: the input of the next one is being read and the output of the last one written while it
 * computes. Each unit has a batch of requests. They are begun by tsr_io_read and tsr_io_write, handed to the system by
 * tsr_io_submit, and waited for together by tsr_io_wait.
 *
 * A file may have a second descriptor that goes past the page cache (O_DIRECT). What is read through it is read from the page
 * before its first byte to the page behind its last one, into memory that has room for that: tsr_io_place lays buffers out so
 * that memory and file have the same place in a page, and nothing is copied. What is written through it are whole pages of the
 * file; the rest of a first and last page is written through the page cache. So every page is either written directly, and once,
 * or only ever through the page cache, and the two never meet. Small requests go through the page cache. */
#ifndef TSR_CONVERT_ENGINE_IO_H
#define TSR_CONVERT_ENGINE_IO_H

#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Smaller requests go through the page cache, which reads ahead and gathers what is written. */
#define TSR_IO_LEAST ((uint64_t)128 << 10)

/* Through the page cache so much is written at a time. It stays in a processor's cache while it is made, digested and copied; and
 * Linux takes pages as large as a write for it, which from 2 MiB on a machine may have to look for. */
#define TSR_IO_PIECE ((uint64_t)256 << 10)

enum {
    TSR_IO_REQUESTS = 32, /* of a batch */
    TSR_IO_BATCHES = 3,   /* of a worker: one is read, one computed, one written */
};

/* What a user asks for. */
typedef enum tsr_io_mode { TSR_IO_AUTO, TSR_IO_BUFFERED, TSR_IO_DIRECT } tsr_io_mode;

typedef struct tsr_io_file {
    int fd;
    int direct;       /* the same file, opened with O_DIRECT; -1: only through the page cache */
    const char *name; /* for messages */
} tsr_io_file;

typedef struct tsr_io_request {
    struct tsr_io_batch *batch;
    tsr_io_file file;
    bool write;
    char *data; /* [size], of the file from `offset` on */
    uint64_t size, offset;
    /* What the system is asked for. */
    int fd;
    char *begin;
    uint64_t span, at;
    int64_t result; /* as of a system call: bytes, or an error below 0 */
} tsr_io_request;

/* The requests of a unit. All zeroes: none. */
typedef struct tsr_io_batch {
    tsr_io_request requests[TSR_IO_REQUESTS];
    unsigned n, left; /* left: those under way */
} tsr_io_batch;

typedef struct tsr_io tsr_io;

/* What a worker reads and writes with; `memory` is where its buffers lie, and `ring` asks for requests that the system carries
 * out while the worker computes (io_uring). Where it cannot be had, each is carried out at once. NULL: no memory. */
tsr_io *tsr_io_begin(bool ring, void *memory, size_t bytes);

/* Whatever is under way ends first. NULL is fine. */
void tsr_io_end(tsr_io *io);

/* Whether the system has io_uring and lets this process use it. */
bool tsr_io_has_ring(void);

/* The size of a page, of memory and of files, by which direct requests are aligned. */
uint64_t tsr_io_page(void);

/* The most memory that a buffer of so many bytes takes, where tsr_io_place places it. */
uint64_t tsr_io_room(uint64_t bytes);

/* The place for a buffer of bytes [offset, offset + size) of the file; *memory moves behind it. */
void *tsr_io_place(const tsr_io_file *file, uint64_t offset, uint64_t size, char **memory);

/* Reads exactly these bytes of the file, to where tsr_io_place said. The batch has room for another request. */
void tsr_io_read(tsr_io *io, tsr_io_batch *batch, const tsr_io_file *file, void *data, uint64_t size, uint64_t offset);

/* Writes them, from where tsr_io_place said, or from anywhere: then through the page cache. */
tsr_status tsr_io_write(tsr_io *io, tsr_io_batch *batch, const tsr_io_file *file, void *data, uint64_t size,
                        uint64_t offset, tsr_err *err) TSR_WARN_UNUSED;

/* Whether tsr_io_write would write them past the page cache, but for what the pages at their ends share with others. */
bool tsr_io_writes_directly(const tsr_io_file *file, const void *data, uint64_t size, uint64_t offset);

/* Writes them through the page cache, at once. When they go on to the disk is left to the system and to the fsync at the end: a
 * thread that asks for it earlier (sync_file_range) waits as long as others read from that disk, and computes nothing. */
tsr_status tsr_io_write_cached(const tsr_io_file *file, const void *data, uint64_t size, uint64_t offset,
                               tsr_err *err) TSR_WARN_UNUSED;

/* Hands what was begun to the system. */
void tsr_io_submit(tsr_io *io);

/* The system does not say what became of requests: nothing can be read or written any more, and the memory may still be used. */
bool tsr_io_is_broken(const tsr_io *io);

/* Waits until all requests of the batch are done, and empties it. Returns the first failure, in the words of tsr_read_at and
 * tsr_write_at. */
tsr_status tsr_io_wait(tsr_io *io, tsr_io_batch *batch, tsr_err *err) TSR_WARN_UNUSED;

#endif
