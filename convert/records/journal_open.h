/* Declares the steps of opening a journal, which are common to journals of directories, shards and ranks. */
#pragma once

#include "convert/records/journal.h"
#include "convert/records/journal_records.h"

/* Rejects a plan with names outside of `dst`, or with a command that cannot be recorded. */
tsr_status tsr_journal_check_plan(const tsr_plan *plan, const char *dst, tsr_err *err);

/* Creates DST and DST/.tessera if they are missing, durably. TSR_E_EXISTS: DST contains something else. */
tsr_status tsr_journal_make_folders(const char *dst, bool force, tsr_err *err);

/* Allocates the memory of a journal at `path`. */
tsr_status tsr_journal_prepare(tsr_journal *journal, const tsr_plan *plan, const char *path, const char *dst,
                               tsr_err *err);

/* Opens and locks the journal. The lock reserves the directory, or a part of it, for this process. If the directory is
 * not writable or `read_only` is set, the journal is only read. */
tsr_status tsr_journal_open_locked(tsr_journal *journal, const char *dst, bool read_only, tsr_err *err);

/* Reads an open journal, or begins it. */
tsr_status tsr_journal_load(tsr_journal *journal, const tsr_plan *plan, const char *dst, bool force,
                            const tsr_step_rows *rows, tsr_err *err);

/* Takes over the record of file `index`, and copies the rows of its steps to `rows`. */
void tsr_journal_take(tsr_journal *journal, const tsr_plan *plan, size_t index, const tsr_finished *from,
                      const tsr_step_rows *rows);
