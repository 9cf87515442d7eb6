/* Reads source bytes once that several steps need, for one plan or several.
 *
 * Source files are divided into chunks of TSR_CHUNK_BYTES. Before a run, every window that will be read is announced. A
 * chunk is read when the first window needs it, in one request for all bytes that any window needs. It is kept until
 * the last window has been read. When memory is short, the least recently used chunk is dropped and read again later.
 * So results never depend on the order of reads; only the number of reads does. */
#pragma once

#include "convert/io/chunks.h"
#include "convert/plan/plan.h"

typedef struct tsr_shared_reads tsr_shared_reads;

/* Begins shared reads that keep at most `capacity` bytes of chunks. Returns NULL when out of memory. */
tsr_shared_reads *tsr_shared_begin(uint64_t capacity);

/* Returns an upper bound of the table sizes for the source files of a plan, in bytes. */
uint64_t tsr_shared_tables(const tsr_plan *plan);

/* Announces a window that will be read once. Not thread-safe. */
tsr_status tsr_shared_announce(tsr_shared_reads *shared, const tsr_checkpoint *source, const tsr_tensor *t,
                               const tsr_window *w, tsr_err *err);

/* Makes reads of an announced file direct from now on, through `direct`, a descriptor opened with O_DIRECT (-1: page
 * cache). Starts threads that read ahead. Not thread-safe. */
void tsr_shared_read_directly(tsr_shared_reads *shared, const tsr_file *file, int direct);

/* Reads an announced window, rows without gaps, into `data`. Thread-safe. */
tsr_status tsr_shared_read(tsr_shared_reads *shared, const tsr_checkpoint *source, const tsr_tensor *t,
                           const tsr_window *w, void *data, tsr_err *err);

/* Asks the kernel to read ahead the bytes of an announced window that are not in memory. Thread-safe. */
void tsr_shared_prefetch(tsr_shared_reads *shared, const tsr_checkpoint *source, const tsr_tensor *t,
                         const tsr_window *w);

/* Returns the position of a window's first byte in the order of all announced files. Windows that begin at the same
 * byte have the same position. */
uint64_t tsr_shared_place(const tsr_shared_reads *shared, const tsr_checkpoint *source, const tsr_tensor *t,
                          const tsr_window *w);

/* Returns the number of bytes read if each chunk is read once. */
uint64_t tsr_shared_announced(const tsr_shared_reads *shared);

/* Returns the bytes read from files so far. */
uint64_t tsr_shared_bytes(tsr_shared_reads *shared);

/* Ends the threads that read ahead, and frees everything. NULL is fine. */
void tsr_shared_end(tsr_shared_reads *shared);
