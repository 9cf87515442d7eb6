/* Composes tessera.manifest.json: the sources of an output, and the digests of its contents (docs/formats.md). */
#pragma once

#include "convert/records/source_sums.h"

/* A file of the output that is not made by a step. */
typedef struct tsr_written {
    const char *name;
    uint64_t bytes;
    tsr_digest digest;
} tsr_written;

/* Writes or compares the next `size` bytes of the text. */
typedef tsr_status tsr_manifest_put_fn(void *to, const char *data, size_t size, tsr_err *err);

/* Composes the manifest of an output whose files are all complete, and passes it to `put` in pieces, because it has a
 * line for each tensor and each read. The manifest does not depend on the machine, threads and interruptions. */
tsr_status tsr_manifest_compose(const tsr_digests *digests, const tsr_step_rows *rows, const tsr_written *written,
                                size_t n, tsr_manifest_put_fn *put, void *to, tsr_err *err);
