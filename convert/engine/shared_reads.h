/* Source bytes that several steps want, of one plan or of several: read once.
 *
 * Source files are cut into stretches of TSR_STRETCH_BYTES. Before a run, every window that will be read is announced. A
 * stretch is read when the first window needs it, in one request for all of its bytes that any window needs, and is kept
 * until the last one has had them. When memory is short, the stretch that was not needed for the longest time makes room,
 * and is read again. So what is right never depends on the order of reads, and how often a byte is read does. */
#ifndef TSR_CONVERT_ENGINE_SHARED_READS_H
#define TSR_CONVERT_ENGINE_SHARED_READS_H

#include "convert/engine/plan.h"
#include "convert/engine/stretches.h"

typedef struct tsr_shared_reads tsr_shared_reads;

/* As many stretches are kept at a time as fit `capacity` bytes. NULL: no memory. */
tsr_shared_reads *tsr_shared_begin(uint64_t capacity);

/* The most bytes of tables that the source files of a plan take. */
uint64_t tsr_shared_tables(const tsr_plan *plan);

/* Announces a window that will be read once. Not thread-safe. */
tsr_status tsr_shared_announce(tsr_shared_reads *shared, const tsr_checkpoint *source, const tsr_tensor *t,
                               const tsr_window *w, tsr_err *err) TSR_WARN_UNUSED;

/* From now on this file, which has been announced, is read past the page cache by `direct`, a descriptor with O_DIRECT (-1: it is
 * not) and, if `ahead`, ahead of those who want its bytes, by threads of its own. Not thread-safe. */
void tsr_shared_read_directly(tsr_shared_reads *shared, const tsr_file *file, int direct, bool ahead);

/* Reads an announced window, rows without gaps, into `data`. Thread-safe. */
tsr_status tsr_shared_read(tsr_shared_reads *shared, const tsr_checkpoint *source, const tsr_tensor *t,
                           const tsr_window *w, void *data, tsr_err *err) TSR_WARN_UNUSED;

/* Asks the system for those bytes of an announced window that are still to be read. Thread-safe. */
void tsr_shared_prefetch(tsr_shared_reads *shared, const tsr_checkpoint *source, const tsr_tensor *t,
                         const tsr_window *w);

/* Where in the order of all announced bytes a window begins: windows that begin at one place have one number. */
uint64_t tsr_shared_place(const tsr_shared_reads *shared, const tsr_checkpoint *source, const tsr_tensor *t,
                          const tsr_window *w);

/* All places are below this. */
uint64_t tsr_shared_places(const tsr_shared_reads *shared);

/* Bytes that are read where each stretch is read once. */
uint64_t tsr_shared_announced(const tsr_shared_reads *shared);

/* Bytes read from files so far. */
uint64_t tsr_shared_bytes(tsr_shared_reads *shared);

/* NULL is fine. */
void tsr_shared_end(tsr_shared_reads *shared);

#endif
