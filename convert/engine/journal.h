/* The journal of an output directory: which plan it belongs to, and which files are finished.
 *
 * A text file, DST/.tessera/journal, one record a line, each ending in the XXH3-64 of what stands before it:
 *     tessera 4 <fingerprint> <command>
 *     word <word>                            of a shard's journal: the command, word by word, for `tessera finish`
 *     output <name>                          every file that the plan will write
 *     file <index> <digest> <hex of the statistics of its steps>; the digest is the lower half of the file's (digests.h)
 * A torn last line (the run was killed while writing it) is cut off on opening. Every change other than an append
 * replaces the whole file. */
#ifndef TSR_CONVERT_ENGINE_JOURNAL_H
#define TSR_CONVERT_ENGINE_JOURNAL_H

#include "convert/engine/shards.h"

typedef struct tsr_journal {
    int fd; /* -1: not open; locked against other processes while it is */
    char *path;
    uint64_t end;           /* where the last intact record ends */
    size_t last;            /* the index of the last record, and one; 0: there is none */
    bool unordered;         /* its records are not in the plan's order, or one stands twice */
    int why_read_only;      /* errno */
    bool read_only;         /* neither journal nor directory can be written: a finished output can still be verified */
    bool shared;            /* the journal has other hard links: the output was copied by linking */
    uint64_t *digests;      /* [plan->n_files]; of finished files */
    bool *finished;         /* [plan->n_files] */
    const tsr_shard *shard; /* NULL: one process makes all files */
    bool others;            /* of a shard: only read, since one process has made, or is making, all files */
    bool merges;            /* what follows is held while shards are put together: */
    tsr_shards shards;
    int *locks; /* [shards.n_present] */
    tsr_arena arena;
} tsr_journal;

/* Opens or begins the journal of `dst` for this plan. Reads which files are finished, and the statistics of their steps
 * into rows[plan->n_steps]. `force` discards the records and the outputs of another plan, config.json first.
 * TSR_E_MISMATCH: it belongs to another plan. TSR_E_EXISTS: there is none, but dst is not empty; or another process
 * holds it; or weights lie there that the plan does not write. TSR_E_FORMAT: the journal names files outside of dst. */
tsr_status tsr_journal_open(tsr_journal *journal, const tsr_plan *plan, const char *dst, bool force,
                            tsr_quant_stats *rows, tsr_err *err) TSR_WARN_UNUSED;

/* The same for a shard. Where all files were made already, in whatever way, they are only looked at (`others`). TSR_E_EXISTS,
 * TSR_E_MISMATCH: its neighbours do not fit; nothing was changed then. */
tsr_status tsr_journal_open_shard(tsr_journal *journal, const tsr_plan *plan, const char *dst, const tsr_shard *shard,
                                  const uint32_t *owner, tsr_quant_stats *rows, tsr_err *err) TSR_WARN_UNUSED;

/* Opens the directory's own journal to put the shards' into it, which are locked and read. Nothing is written before
 * tsr_journal_rewrite. TSR_E_NOTHING: a shard is at work. */
tsr_status tsr_journal_open_merged(tsr_journal *journal, const tsr_plan *plan, const char *dst, const tsr_shard *shard,
                                   const uint32_t *owner, tsr_quant_stats *rows, tsr_err *err) TSR_WARN_UNUSED;

/* Records file `index` as finished, durably. */
tsr_status tsr_journal_add(tsr_journal *journal, const tsr_plan *plan, size_t index, uint64_t digest,
                           const tsr_quant_stats *rows, tsr_err *err) TSR_WARN_UNUSED;

/* Replaces the journal, durably, by one that records just the files for which finished[] is true. */
tsr_status tsr_journal_rewrite(tsr_journal *journal, const tsr_plan *plan, const tsr_quant_stats *rows,
                               tsr_err *err) TSR_WARN_UNUSED;

void tsr_journal_close(tsr_journal *journal);

#endif
