/* Digests of what was read of the sources: for each step, of all that its units read, the same for any machine, threads, ranks, shards
 * and kills.
 *
 * A window is digested as it lies in memory, rows without gaps, while it is read for the arithmetic that follows. The digest, the place
 * of the window's first byte in its file and the number of the step's input are digested once more, and the sums of both halves of
 * these over all windows, each modulo 2^64, are the step's: units may end in any order. They are kept with the step's statistics, and
 * so in the journal. What no step reads (dropped tensors, what lies between windows) has no digest. */
#ifndef TSR_CONVERT_ENGINE_SOURCE_SUMS_H
#define TSR_CONVERT_ENGINE_SOURCE_SUMS_H

#include "convert/engine/digests.h"

/* Digests what a unit has read, which is in unit->in_data. Zeroes of a step whose outputs another one may give: that one reads the
 * same. */
tsr_digest tsr_source_sum(const tsr_step *step, const tsr_unit *unit, const tsr_cpu_kernels *kernels);

/* Adds it to the unit's statistics. */
void tsr_source_sum_add(tsr_quant_stats *stats, tsr_digest sum);

/* Adds an object to the array that is open: what the step has read, by its statistics; nothing where it read nothing. */
tsr_status tsr_source_sum_write(tsr_text *text, const tsr_plan *plan, const tsr_step *step, const tsr_quant_stats *row,
                                tsr_err *err) TSR_WARN_UNUSED;

#endif
