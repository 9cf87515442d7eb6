/* Declares shards: one output made by several independent processes, each of which makes some files of the plan.
 *
 * The plan alone determines which shard makes a file. A shard has its own journal, DST/.tessera/journal-3-of-8. The
 * lock on it excludes a second process for the same shard, and it holds the command, so that `tessera finish` can plan
 * again. Shards write no texts, because an index, a report or a config.json covers all files. `finish` locks all
 * shards, verifies every file, and leaves the directory as one process would have made it.
 *
 * While a shard's journal exists, no run without --shard may write. If such a run has begun, or the shards have been
 * joined, shards only verify. */
#pragma once

#include "convert/plan/plan.h"
#include "convert/records/shard.h"

#include <limits.h>

/* The work of a shard. */
typedef struct tsr_shard_size {
    uint64_t files, bytes_in, bytes_out;
} tsr_shard_size;

/* The shards whose journals are in a directory. */
typedef struct tsr_shards {
    unsigned count; /* number of shards of the output; 0: there are no journals */
    unsigned *present;
    size_t n_present;
} tsr_shards;

/* Computes the shard that makes each file: owner[n_files]. Files are assigned in order of falling size, each to the
 * shard with the fewest bytes to read and write so far. */
tsr_status tsr_shards_divide(const tsr_plan *plan, unsigned count, uint32_t *owner, tsr_err *err);

tsr_shard_size tsr_shard_size_of(const tsr_plan *plan, const uint32_t *owner, uint32_t shard);

/* Writes DST/.tessera/journal-INDEX-of-COUNT to `path`, and returns it. */
const char *tsr_shard_journal(const char *dst, unsigned index, unsigned count, char path[PATH_MAX]);

/* Finds the journals of shards; the list is in `arena`. TSR_E_EXISTS: their numbers of shards differ. */
tsr_status tsr_shards_find(const char *dst, tsr_arena *arena, tsr_shards *found, tsr_err *err);

/* Reads the command in a shard's journal. If the journal is cut off before it, there are no words, and no error. */
tsr_status tsr_shard_words(const char *dst, unsigned index, unsigned count, tsr_arena *arena, const char *const **words,
                           size_t *n_words, tsr_err *err);

/* Rejects a shard if other shards have another plan or another number of shards: TSR_E_EXISTS, TSR_E_MISMATCH, with the
 * difference. */
tsr_status tsr_shard_admit(const tsr_plan *plan, const char *dst, const tsr_shard *shard, tsr_err *err);

/* Removes the unfinished files of a killed run of the shard. */
void tsr_shard_remove_parts(const tsr_plan *plan, const char *dst, const tsr_shard *shard, const uint32_t *owner);

/* Locks all shards' journals: fds[n_present], -1 where one has vanished. TSR_E_NOTHING: a process holds one. */
tsr_status tsr_shards_lock(const char *dst, const tsr_shards *found, int *fds, tsr_err *err);

/* Checks whether a journal, the directory's or a shard's, has records. */
tsr_status tsr_shards_begun(const char *path, bool *begun, tsr_err *err);

/* Removes the journals of shards, durably. */
tsr_status tsr_shards_forget(const char *dst, const tsr_shards *found, tsr_err *err);

/* Checks that every shard has finished its files. Sets shard->lacking. TSR_E_NOTHING: the message names the shards
 * that are not complete. */
tsr_status tsr_shards_check(const tsr_plan *plan, const char *dst, const tsr_shard *shard, const uint32_t *owner,
                            const bool *finished, tsr_err *err);
