/* The records of a journal as text: journal.h says what they are. */
#ifndef TSR_CONVERT_ENGINE_JOURNAL_RECORDS_H
#define TSR_CONVERT_ENGINE_JOURNAL_RECORDS_H

#include "convert/engine/destination.h"
#include "convert/engine/shard.h"

/* No journal is longer. */
#define TSR_MAX_JOURNAL_BYTES ((uint64_t)1 << 30)

/* How records begin that tsr_records_list can list. */
#define TSR_OUTPUT_RECORD "output "
#define TSR_WORD_RECORD   "word "

/* What is known of a plan's files: [n_files], [n_files], [n_steps]. */
typedef struct tsr_finished {
    uint64_t *digests;
    bool *finished;
    tsr_quant_stats *rows;
    size_t last;    /* the index of the last record, and one; 0: there is none */
    bool unordered; /* the records are not in the plan's order, or one stands twice */
} tsr_finished;

/* For messages: where the journal lies, whose it is, and what starts over ("--force"). */
typedef struct tsr_records_of {
    const char *path, *dst, *to_start_over;
} tsr_records_of;

/* Appends the records that a journal begins with; `shard` is NULL unless it is that of a shard. */
void tsr_records_add_head(tsr_text *t, const tsr_plan *plan, const tsr_shard *shard);

/* Appends the record of a finished file. */
void tsr_records_add_file(tsr_text *t, const tsr_plan *plan, size_t index, uint64_t digest,
                          const tsr_quant_stats *rows);

/* Whether the first record is whole. A run that was killed before that has written nothing else. *old: of version 1. */
bool tsr_records_begun(const char *text, size_t size, bool *old);

/* Reads the records into `to` (NULL: only looks whose they are); *good is where the last intact one ends. TSR_E_EXISTS,
 * TSR_E_MISMATCH: they are another plan's. */
tsr_status tsr_records_read(const char *text, size_t size, const tsr_plan *plan, const tsr_records_of *of,
                            tsr_finished *to, size_t *good, tsr_err *err) TSR_WARN_UNUSED;

/* What the records say that begin with `kind`, in their order; in `arena`. */
tsr_status tsr_records_list(const char *text, size_t size, const char *kind, tsr_arena *arena, tsr_names *names,
                            tsr_err *err) TSR_WARN_UNUSED;

#endif
