/* A stretch of output on its way from memory to its file.
 *
 * It is digested and, where it goes through the page cache, written in pieces, each as soon as it is made: it is then still in the
 * processor's cache, from which reading it once more costs next to nothing. */
#ifndef TSR_CONVERT_ENGINE_OUTGOING_H
#define TSR_CONVERT_ENGINE_OUTGOING_H

#include "convert/engine/digests.h"
#include "convert/engine/io.h"

typedef struct tsr_outgoing {
    tsr_taker taker;                /* the first member: by it an operation says what is made */
    const tsr_cpu_kernels *kernels; /* NULL: it is not digested */
    const tsr_io_file *file;
    char *data;
    uint64_t size, offset;
    uint64_t done; /* bytes taken */
    bool cached;   /* and written, through the page cache; else all are written directly in the end */
    tsr_status status;
    tsr_err err;
    XXH3_state_t hash;
} tsr_outgoing;

/* Of bytes [offset, offset + size) of the file, which will be made at `data`. Without kernels it is not digested. */
void tsr_outgoing_begin(tsr_outgoing *o, const tsr_cpu_kernels *kernels, const tsr_io_file *file, void *data,
                        uint64_t size, uint64_t offset);

/* All of it is made: it is written, or its write begun, and *digest is its XXH128. */
tsr_status tsr_outgoing_end(tsr_outgoing *o, tsr_io *io, tsr_io_batch *batch, tsr_digest *digest,
                            tsr_err *err) TSR_WARN_UNUSED;

#endif
