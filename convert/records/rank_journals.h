/* Declares the journals of ranks other than 0 (--mpi): DST/.tessera/journal-rank-K.
 *
 * Rank 0 has the journal of the directory. Every other rank records its finished files in its own journal. At the end
 * rank 0 records all files in the directory's journal and removes the others. A killed job leaves them behind, and the
 * next run, with any number of ranks, takes them over. */
#pragma once

#include "convert/records/journal.h"

/* Allocates the journal of a rank. Nothing is written. */
tsr_status tsr_rank_journal_prepare(tsr_journal *journal, const tsr_plan *plan, const char *dst, unsigned rank,
                                    tsr_err *err);

/* Begins the journal of a rank: it is locked, and records the files that are finished so far. */
tsr_status tsr_rank_journal_begin(tsr_journal *journal, const tsr_plan *plan, const char *dst,
                                  const tsr_step_rows *rows, tsr_err *err);

/* Merges the journals that ranks left behind into the directory's journal, which is open; `force` only removes them.
 * TSR_E_EXISTS: a rank is running. */
tsr_status tsr_rank_journals_take(tsr_journal *journal, const tsr_plan *plan, const char *dst, bool force,
                                  const tsr_step_rows *rows, tsr_err *err);

/* Removes the journals of ranks, durably. The directory's journal must record all files. */
tsr_status tsr_rank_journals_remove(const char *dst, tsr_err *err);
