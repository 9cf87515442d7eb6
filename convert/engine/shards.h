/* One output made by several processes that know nothing of each other: each makes the files of one shard of the plan.
 *
 * Which files are whose follows from the plan alone. A shard has a journal of its own, DST/.tessera/journal-3-of-8, whose
 * lock keeps a second process away from the same shard, and which holds the command, so that `tessera finish` can plan
 * again. Shards write no texts: an index, a report or a config.json speaks of all files. What puts the shards together
 * holds all of their locks, verifies every file, and leaves a directory as one process would have made it.
 *
 * While a shard's journal is there, no run without a shard may write; and where one process has begun, or the shards have
 * been put together, shards only verify. */
#ifndef TSR_CONVERT_ENGINE_SHARDS_H
#define TSR_CONVERT_ENGINE_SHARDS_H

#include "convert/engine/plan.h"
#include "convert/engine/shard.h"

#include <limits.h>

/* What a shard has to do. */
typedef struct tsr_shard_size {
    uint64_t files, bytes_in, bytes_out;
} tsr_shard_size;

/* The shards whose journals lie in a directory. */
typedef struct tsr_shards {
    unsigned count; /* of how many shards they are; 0: there is none */
    unsigned *present;
    size_t n_present;
} tsr_shards;

/* Says of each file which shard makes it: owner[n_files]. The largest come first, each to the shard that has the fewest
 * bytes to read and write so far. */
tsr_status tsr_shards_divide(const tsr_plan *plan, unsigned count, uint32_t *owner, tsr_err *err) TSR_WARN_UNUSED;

tsr_shard_size tsr_shard_size_of(const tsr_plan *plan, const uint32_t *owner, uint32_t shard);

/* DST/.tessera/journal-INDEX-of-COUNT. Returns path. */
const char *tsr_shard_journal(const char *dst, unsigned index, unsigned count, char path[PATH_MAX]);

/* Finds the journals of shards; the list is in `arena`. TSR_E_EXISTS: they are of different numbers of shards. */
tsr_status tsr_shards_find(const char *dst, tsr_arena *arena, tsr_shards *found, tsr_err *err) TSR_WARN_UNUSED;

/* The command that a shard's journal holds. NULL items, no error: it is torn before that. */
tsr_status tsr_shard_words(const char *dst, unsigned index, unsigned count, tsr_arena *arena, const char *const **words,
                           size_t *n_words, tsr_err *err) TSR_WARN_UNUSED;

/* Refuses a shard whose neighbours were begun with another plan, or as another number of shards: TSR_E_EXISTS,
 * TSR_E_MISMATCH, with what differs. */
tsr_status tsr_shard_admit(const tsr_plan *plan, const char *dst, const tsr_shard *shard, tsr_err *err) TSR_WARN_UNUSED;

/* Removes what a killed run of the shard left unfinished. */
void tsr_shard_remove_parts(const tsr_plan *plan, const char *dst, const tsr_shard *shard, const uint32_t *owner);

/* Locks all shards' journals: fds[n_present], -1 where one has vanished. TSR_E_NOTHING: a process holds one. */
tsr_status tsr_shards_lock(const char *dst, const tsr_shards *found, int *fds, tsr_err *err) TSR_WARN_UNUSED;

/* Whether a journal says anything: the directory's own, of one process or of shards that have been put together, or a shard's. */
tsr_status tsr_shards_begun(const char *path, bool *begun, tsr_err *err) TSR_WARN_UNUSED;

/* Removes the journals of shards, durably: they have been put together, or are started over. */
tsr_status tsr_shards_forget(const char *dst, const tsr_shards *found, tsr_err *err) TSR_WARN_UNUSED;

/* Checks finished[n_files] against what each shard owes, sets shard->lacking, and says which shards are not complete:
 * TSR_E_NOTHING. */
tsr_status tsr_shards_check(const tsr_plan *plan, const char *dst, const tsr_shard *shard, const uint32_t *owner,
                            const bool *finished, tsr_err *err) TSR_WARN_UNUSED;

#endif
