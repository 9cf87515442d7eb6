/* Declares opening, appending to, and committing output files. */
#pragma once

#include "convert/run/run_state.h"

/* Opens a file, to write or to verify it, and writes or checks its header. Called with the lock held, on the first unit
 * of the file. */
tsr_status tsr_run_open_file(tsr_run *r, size_t file, tsr_err *err);

void tsr_run_close_file(tsr_file_state *file);

/* Writes a unit's output after that of all earlier units, for which it waits. Buffered outputs come last, as if each
 * were one more unit. */
tsr_status tsr_run_append(tsr_run *r, size_t index, uint64_t unit, const void *data, uint64_t size, tsr_err *err);

/* Digests an existing appended file, which is read in pieces of at most `capacity` bytes. */
tsr_status tsr_run_digest_appended(tsr_run *r, size_t index, void *memory, size_t capacity, tsr_err *err);

/* Commits a complete file. After converting, it becomes durable under its name and is recorded in the journal. After
 * verifying, its digest is compared with the journal's. */
tsr_status tsr_run_commit_file(tsr_run *r, size_t file, tsr_err *err);
