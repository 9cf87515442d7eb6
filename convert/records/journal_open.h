/* Declares the steps of opening a journal, which journals of a directory, of shards and of ranks share. */
#ifndef TSR_CONVERT_RECORDS_JOURNAL_OPEN_H
#define TSR_CONVERT_RECORDS_JOURNAL_OPEN_H

#include "convert/records/journal.h"
#include "convert/records/journal_records.h"

/* Refuses a plan whose names lead out of `dst`, or whose command cannot be recorded. */
tsr_status tsr_journal_check_plan(const tsr_plan *plan, const char *dst, tsr_err *err) TSR_WARN_UNUSED;

/* Makes DST and DST/.tessera where they are missing, and makes them durable. TSR_E_EXISTS: DST holds something else. */
tsr_status tsr_journal_make_folders(const char *dst, bool force, tsr_err *err) TSR_WARN_UNUSED;

/* Allocates what a journal at `path` needs. */
tsr_status tsr_journal_prepare(tsr_journal *journal, const tsr_plan *plan, const char *path, const char *dst,
                               tsr_err *err) TSR_WARN_UNUSED;

/* Opens and locks the journal. The lock reserves the directory, or a part of it, for this process. Where nothing can be
 * written, or `read_only` is set, the journal is only read. */
tsr_status tsr_journal_open_locked(tsr_journal *journal, const char *dst, bool read_only, tsr_err *err) TSR_WARN_UNUSED;

/* Reads an open journal, or begins it. */
tsr_status tsr_journal_load(tsr_journal *journal, const tsr_plan *plan, const char *dst, bool force,
                            const tsr_step_rows *rows, tsr_err *err) TSR_WARN_UNUSED;

/* Takes over the record of file `index`, and copies the rows of its steps to `rows`. */
void tsr_journal_take(tsr_journal *journal, const tsr_plan *plan, size_t index, const tsr_finished *from,
                      const tsr_step_rows *rows);

#endif
