/* Digests the source bytes that the units of each step read.
 *
 * A window is digested as it lies in memory, rows without gaps. That digest, the offset of the window in its file and
 * the number of the step's input are hashed together. The source sum of a step is the sum of these hashes over all
 * windows, each 64-bit half modulo 2^64. So units may end in any order, and the sums do not depend on the machine,
 * threads, ranks, shards and interruptions. They are in the journal, beside the step's statistics. Bytes that no step
 * reads (dropped tensors, gaps between windows) have no digest. */
#pragma once

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

/* Allocates rows of zeros. Returns false when out of memory; they must be freed even then. */
bool tsr_step_rows_begin(tsr_step_rows *rows, size_t n_steps);
void tsr_step_rows_free(tsr_step_rows *rows);

/* Copies the rows of the steps of a file. */
void tsr_step_rows_copy(const tsr_step_rows *to, const tsr_step_rows *from, const tsr_out_file *file);

/* Sets the rows of the steps of a file to zeros. */
void tsr_step_rows_clear(const tsr_step_rows *rows, const tsr_out_file *file);

/* Digests the data that a unit has read, unit->in_data. Returns zeros for a step whose outputs another step may
 * coproduce, because that step reads the same bytes. */
tsr_source_sum tsr_source_sum_of(const tsr_step *step, const tsr_unit *unit, const tsr_cpu_kernels *kernels);

void tsr_source_sum_add(tsr_source_sum *total, const tsr_source_sum *more);

/* Appends an object to the open array that describes what a step has read. Appends nothing if the step reads
 * nothing. */
tsr_status tsr_source_sum_write(tsr_text *text, const tsr_plan *plan, const tsr_step *step, const tsr_source_sum *sum,
                                tsr_err *err);
