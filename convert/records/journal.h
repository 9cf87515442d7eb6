/* Declares the journal of an output directory, which records the plan and the finished files.
 *
 * The journal is a text file, DST/.tessera/journal. Each line is a record and ends in the XXH3-64 of the rest of the
 * line:
 *     tessera <version> <fingerprint> <command>
 *     word <word>                            of a shard's journal: the command, word by word, for `tessera finish`
 *     output <name>                          every file that the plan will write
 *     file <index> <digest> <hex>            a finished file: the lower half of its digest (digests.h), and for each
 *                                            step the bytes of its statistics and of its source sum (source_sums.h)
 * An incomplete last line (the run was killed while writing it) is removed when the journal is opened. Every change
 * other than an append replaces the whole file. */
#pragma once

#include "convert/records/shards.h"
#include "convert/records/source_sums.h"

typedef struct tsr_journal {
    int fd; /* -1: not open; while open it is locked against other processes */
    char *path;
    uint64_t end;           /* end of the last intact record */
    size_t last;            /* 1 + index of the last record; 0: there is none */
    bool unordered;         /* its records are not in the plan's order, or one occurs twice */
    int why_read_only;      /* errno */
    bool read_only;         /* neither journal nor directory is writable; a finished output can still be verified */
    bool shared;            /* the journal has other hard links, because the output was copied with links */
    uint64_t *digests;      /* [plan->n_files]: digests of finished files */
    bool *finished;         /* [plan->n_files] */
    const tsr_shard *shard; /* NULL: one process makes all files */
    bool others;            /* this shard only reads, because a run without --shard makes or made all files */
    bool merges;            /* puts shards together; the following members are for that: */
    tsr_shards shards;
    int *locks; /* [shards.n_present] */
    tsr_arena arena;
} tsr_journal;

/* Opens or begins the journal of `dst` for this plan. Reads which files are finished, and the rows of their steps.
 * `force` discards the records and outputs of another plan, config.json first. TSR_E_MISMATCH: the journal belongs to
 * another plan. TSR_E_EXISTS: there is no journal and dst is not empty, another process holds the journal, or dst has
 * weights that the plan does not write. TSR_E_FORMAT: the journal names files outside of dst. */
tsr_status tsr_journal_open(tsr_journal *journal, const tsr_plan *plan, const char *dst, bool force,
                            const tsr_step_rows *rows, tsr_err *err);

/* Checks that tsr_journal_open without `force` would begin or resume `dst`, and changes nothing. TSR_E_EXISTS,
 * TSR_E_MISMATCH: it would not. */
tsr_status tsr_journal_check_resumable(const tsr_plan *plan, const char *dst, tsr_err *err);

/* Opens or begins the journal of a shard. If all files were made without it, they are only verified (`others`).
 * TSR_E_EXISTS, TSR_E_MISMATCH: the shard does not match the other shards; nothing was changed. */
tsr_status tsr_journal_open_shard(tsr_journal *journal, const tsr_plan *plan, const char *dst, const tsr_shard *shard,
                                  const uint32_t *owner, const tsr_step_rows *rows, tsr_err *err);

/* Opens the directory's own journal, and locks and reads those of the shards. Nothing is written before
 * tsr_journal_rewrite. TSR_E_NOTHING: a shard is at work. */
tsr_status tsr_journal_open_merged(tsr_journal *journal, const tsr_plan *plan, const char *dst, const tsr_shard *shard,
                                   const uint32_t *owner, const tsr_step_rows *rows, tsr_err *err);

/* Records file `index` as finished, durably. */
tsr_status tsr_journal_add(tsr_journal *journal, const tsr_plan *plan, size_t index, uint64_t digest,
                           const tsr_step_rows *rows, tsr_err *err);

/* Replaces the journal, durably, by one that records the files for which finished[] is true. */
tsr_status tsr_journal_rewrite(tsr_journal *journal, const tsr_plan *plan, const tsr_step_rows *rows, tsr_err *err);

void tsr_journal_close(tsr_journal *journal);
