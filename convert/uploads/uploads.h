/* Sends the output of a run to s3:// while it is made in a local directory, its spool.
 *
 * Each finished file becomes an object, is recorded (sent_record.h), and is then removed from the spool. The texts
 * follow when all files are there: the indexes and then each config.json come last, so that an unfinished output is no
 * model. A rerun keeps the objects whose size and ETag are those of their records. DST/.tessera/uploads has the address
 * of the output. Shards and ranks share the spool. Each process sends the files that it makes. */
#pragma once

#include "common/atomics.h"
#include "convert/records/digests.h"
#include "convert/records/journal.h"

/* The most files of weights in the spool at a time, besides one of each sequence of the plan. Small files may be more:
 * one for each unit in progress. */
enum { TSR_FILES_IN_SPOOL = 2 };

typedef struct tsr_uploads tsr_uploads;

typedef struct tsr_uploads_summary {
    const char *address;     /* NULL: the output is local. Borrowed from the job */
    uint64_t objects, bytes; /* that were sent */
    uint64_t kept;           /* objects of an earlier run */
} tsr_uploads_summary;

/* Opens the address of an output whose spool is `dst`. All arguments are borrowed until the end. Nothing is written. */
tsr_status tsr_uploads_begin(tsr_uploads **uploads, const char *address, const tsr_plan *plan, const char *dst,
                             const atomic_bool *cancel, tsr_err *err);
void tsr_uploads_end(tsr_uploads *uploads);

/* Finds the files that are objects already, after the journal was opened: sets sent[n_files] and their digests.
 * TSR_E_EXISTS: the address holds objects of other programs, or the spool is a local output. TSR_E_MISMATCH: the spool
 * belongs to another address. */
tsr_status tsr_uploads_find(tsr_uploads *uploads, const tsr_journal *journal, bool force, tsr_digests *digests,
                            bool *sent, tsr_err *err);

/* Removes each config.json, then the indexes, from the store, because a file is to be made. */
tsr_status tsr_uploads_withdraw(tsr_uploads *uploads, tsr_err *err);

/* Sends a finished file, records it, and removes it from the spool. `digest` is that of the journal. */
tsr_status tsr_uploads_add(tsr_uploads *uploads, const tsr_digests *digests, size_t file, uint64_t digest,
                           tsr_err *err);

/* Sends the texts of a complete output, each config.json last. `blocks`: there is a file of block figures. */
tsr_status tsr_uploads_finish(tsr_uploads *uploads, bool blocks, tsr_err *err);

/* Returns the bytes sent so far. Thread-safe. */
uint64_t tsr_uploads_sent(const tsr_uploads *uploads);

tsr_uploads_summary tsr_uploads_summarize(const tsr_uploads *uploads);

/* Sets settled[i] for all files except the largest that can be in the spool at a time, of those that are not
 * settled. */
void tsr_uploads_settle(const tsr_plan *plan, bool *settled);

/* Sets *address to the address whose spool a directory is, in `arena`; NULL: it is no spool. *complete: all objects
 * were written. */
tsr_status tsr_uploads_read_head(const char *dst, tsr_arena *arena, const char **address, bool *complete, tsr_err *err);

/* Rejects a local output in a directory that is a spool. TSR_E_EXISTS. */
tsr_status tsr_uploads_refuse_spool(const char *dst, tsr_err *err);
