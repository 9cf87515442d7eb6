/* Digests what the units of each step read of the sources.
 *
 * A window is digested as it lies in memory, rows without gaps. The digest, the place of the window's first byte in its file
 * and the number of the step's input are digested once more. The sums of both halves of these over all windows, each modulo
 * 2^64, are the step's. So units may end in any order, and the sums are the same for any machine, threads, ranks, shards and
 * kills. They are in the journal, beside the step's statistics. What no step reads (dropped tensors, bytes between windows)
 * has no digest. */
#ifndef TSR_CONVERT_RECORDS_SOURCE_SUMS_H
#define TSR_CONVERT_RECORDS_SOURCE_SUMS_H

#include "convert/records/digests.h"

/* The sum of a step. */
typedef struct tsr_source_sum {
    uint64_t high, low;
} tsr_source_sum;

/* Results of finished steps: arrays of plan->n_steps. */
typedef struct tsr_step_rows {
    tsr_quant_stats *stats;
    tsr_source_sum *sums;
} tsr_step_rows;

/* Allocates rows of zeros. Returns false when out of memory; they have to be freed all the same. */
bool tsr_step_rows_begin(tsr_step_rows *rows, size_t n_steps);
void tsr_step_rows_free(tsr_step_rows *rows);

/* Copies the rows of the steps of a file. */
void tsr_step_rows_copy(const tsr_step_rows *to, const tsr_step_rows *from, const tsr_out_file *file);

/* Sets the rows of the steps of a file to zeros. */
void tsr_step_rows_clear(const tsr_step_rows *rows, const tsr_out_file *file);

/* Digests what a unit has read, which is in unit->in_data. Returns zeros for a step whose outputs another one may
 * coproduce: that one reads the same bytes. */
tsr_source_sum tsr_source_sum_of(const tsr_step *step, const tsr_unit *unit, const tsr_cpu_kernels *kernels);

void tsr_source_sum_add(tsr_source_sum *total, const tsr_source_sum *more);

/* Appends an object to the array that is open: what a step has read. Appends nothing where the step reads nothing. */
tsr_status tsr_source_sum_write(tsr_text *text, const tsr_plan *plan, const tsr_step *step, const tsr_source_sum *sum,
                                tsr_err *err) TSR_WARN_UNUSED;

#endif
