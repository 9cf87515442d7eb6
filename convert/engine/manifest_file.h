/* tessera.manifest.json: what an output was made of, and the digests of all that it holds (docs/formats.md). */
#ifndef TSR_CONVERT_ENGINE_MANIFEST_FILE_H
#define TSR_CONVERT_ENGINE_MANIFEST_FILE_H

#include "convert/engine/digests.h"

/* A file of the output that no step makes. */
typedef struct tsr_written {
    const char *name;
    uint64_t bytes;
    tsr_digest digest;
} tsr_written;

/* Takes the next `size` bytes of the text. */
typedef tsr_status tsr_manifest_put_fn(void *to, const char *data, size_t size, tsr_err *err);

/* Composes the manifest of an output whose files are all whole, and hands it to `put` in pieces, since it has a line for each tensor
 * and each reading. It is the same for any machine, threads and interruptions. */
tsr_status tsr_manifest_compose(const tsr_digests *digests, const tsr_quant_stats *rows, const tsr_written *written,
                                size_t n, tsr_manifest_put_fn *put, void *to, tsr_err *err) TSR_WARN_UNUSED;

#endif
