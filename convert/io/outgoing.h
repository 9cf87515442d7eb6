/* Declares the output of a unit, which is digested and written while it is computed.
 *
 * It is digested in pieces, each as soon as it is complete. If it goes through the page cache, it is written in the
 * same pieces. A piece is then still in the processor's cache, so digesting and writing it are cheap. */
#pragma once

#include "convert/io/io.h"
#include "convert/records/digests.h"

typedef struct tsr_outgoing {
    tsr_sink sink;                  /* first member; an operation reports finished bytes to it */
    const tsr_cpu_kernels *kernels; /* NULL: it is not digested */
    const tsr_io_file *file;
    char *data;
    uint64_t size, offset;
    uint64_t done; /* bytes taken */
    bool cached;   /* written through the page cache piece by piece; else written directly at the end */
    tsr_status status;
    tsr_err err;
    XXH3_state_t hash;
} tsr_outgoing;

/* Begins the output of bytes [offset, offset + size) of the file, which will be computed at `data`. Without kernels it
 * is not digested. */
void tsr_outgoing_begin(tsr_outgoing *o, const tsr_cpu_kernels *kernels, const tsr_io_file *file, void *data,
                        uint64_t size, uint64_t offset);

/* Ends the output when all of it is computed: writes it, or begins to. *digest is its XXH128. */
tsr_status tsr_outgoing_end(tsr_outgoing *o, tsr_io *io, tsr_io_batch *batch, tsr_digest *digest, tsr_err *err);
