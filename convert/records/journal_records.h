/* Declares the text form of a journal's records (journal.h). */
#pragma once

#include "convert/records/destination.h"
#include "convert/records/shard.h"

/* Maximum size of a journal. */
#define TSR_MAX_JOURNAL_BYTES ((uint64_t)1 << 30)

/* Beginnings of records that tsr_records_list can list. */
#define TSR_OUTPUT_RECORD "output "
#define TSR_WORD_RECORD   "word "

/* Records of finished files. Arrays: [n_files], [n_files], and rows of their steps. */
typedef struct tsr_finished {
    uint64_t *digests;
    bool *finished;
    tsr_step_rows rows;
    size_t last;    /* 1 + index of the last record; 0: there is none */
    bool unordered; /* the records are not in the plan's order, or one occurs twice */
} tsr_finished;

/* Allocates empty records for the files of the plan. `dst` is for messages. tsr_finished_free must be called even after
 * a failure. */
tsr_status tsr_finished_begin(tsr_finished *records, const tsr_plan *plan, const char *dst, tsr_err *err);
void tsr_finished_free(tsr_finished *records);

/* Names for messages: the journal, its directory, and the option that starts over ("--force"). */
typedef struct tsr_records_of {
    const char *path, *dst, *to_start_over;
} tsr_records_of;

/* Appends the records at the beginning of a journal. `shard` is NULL unless it is the journal of a shard. */
void tsr_records_add_head(tsr_text *t, const tsr_plan *plan, const tsr_shard *shard);

/* Appends the record of a finished file. */
void tsr_records_add_file(tsr_text *t, const tsr_plan *plan, size_t index, uint64_t digest, const tsr_step_rows *rows);

/* Returns true if the first record is complete. Without it the journal has no records. */
bool tsr_records_begun(const char *text, size_t size);

/* Reads the records into `to` (NULL: only checks the plan). *good is set to the end of the last intact record.
 * TSR_E_EXISTS, TSR_E_MISMATCH: the records belong to another plan. */
tsr_status tsr_records_read(const char *text, size_t size, const tsr_plan *plan, const tsr_records_of *of,
                            tsr_finished *to, size_t *good, tsr_err *err);

/* Replaces the records in `to` by those of the journal at of->path. After a failure `to` may hold some of them. */
tsr_status tsr_finished_read(tsr_finished *to, const tsr_plan *plan, const tsr_records_of *of, tsr_err *err);

/* Lists the remaining records that begin with `kind`, in order, in `arena`. */
tsr_status tsr_records_list(const char *text, size_t size, const char *kind, tsr_arena *arena, tsr_names *names,
                            tsr_err *err);
