/* Records of objects that a store has, in the state folder of a spool: DST/.tessera/N.sent.
 *
 * N is the index of an output file or, from plan->n_files on, of a text. The record of a file has its digests, because
 * the manifest needs them after the file was removed from the spool. It is a text, and its last line is the XXH3-64 of
 * the lines before. */
#pragma once

#include "convert/records/digests.h"
#include "formats/remote/objects.h"

#include <limits.h>

typedef struct tsr_sent {
    char name[PATH_MAX];
    uint64_t bytes;
    uint64_t digest; /* the digest of the journal; of a text: its XXH3-64 */
    char etag[TSR_ETAG_TEXT];
} tsr_sent;

/* Writes the path of a state file, DST/.tessera/INDEX.KIND, to `path`, and returns it. */
const char *tsr_sent_path(const char *dst, size_t index, const char *kind, char path[PATH_MAX]);

/* Writes a record, durably. `digests` is NULL for a text. */
tsr_status tsr_sent_write(const char *dst, size_t index, const tsr_sent *sent, const tsr_digests *digests,
                          tsr_err *err);

/* Reads a record, and the digests of the file into `digests` (NULL for a text). *known is false if there is no record,
 * or it is damaged or belongs to another plan; then the digests are zeros. */
tsr_status tsr_sent_read(const char *dst, size_t index, tsr_sent *sent, tsr_digests *digests, bool *known,
                         tsr_err *err);
