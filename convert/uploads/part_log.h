/* Records the parts of a multipart upload that is not complete, in the state folder of a spool: DST/.tessera/N.parts.
 *
 * Its first line has the size and digest of the file and the id of the upload, and each further one a part that the
 * store has. A line ends in the XXH3-64 of the rest of it, so that a line that was cut by a kill is not used. */
#pragma once

#include "formats/remote/objects.h"

#include <limits.h>

typedef struct tsr_part_log {
    int fd; /* -1: not open */
    char path[PATH_MAX];
    uint64_t end;           /* end of the last intact line */
    uint64_t bytes, digest; /* size and digest of the file */
} tsr_part_log;

/* Opens the log, and lets `upload` (begun by tsr_multipart_begin) continue and record there. *other receives the id of
 * an upload of another file, which must be given up, or NULL; the caller frees it. */
tsr_status tsr_part_log_open(tsr_part_log *log, const char *path, uint64_t bytes, uint64_t digest,
                             tsr_multipart *upload, char **other, tsr_err *err);

void tsr_part_log_close(tsr_part_log *log);
