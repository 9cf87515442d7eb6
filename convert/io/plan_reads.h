/* Declares visitors of the windows that units of a plan read. */
#pragma once

#include "convert/io/shared_reads.h"
#include "convert/plan/plan.h"

/* Visits a non-empty window of a source tensor. */
typedef tsr_status tsr_visit_window(void *data, const tsr_tensor *t, const tsr_window *w, tsr_err *err);

/* Visits the windows that a unit of a step, or of an amax pass, reads. */
tsr_status tsr_step_reads(const tsr_step *step, uint64_t unit, tsr_visit_window *visit, void *data, tsr_err *err);
tsr_status tsr_amax_reads(const tsr_amax *amax, uint64_t unit, tsr_visit_window *visit, void *data, tsr_err *err);

/* Returns the tensor of window i of an amax unit. */
const tsr_tensor *tsr_amax_input(const tsr_amax_rows *at, uint32_t i);

/* Announces to `shared` the windows of all files for which `chosen` is true (NULL: all files), in reading order.
 * *wanted receives the total bytes of the windows; may be NULL. */
tsr_status tsr_plan_announce(const tsr_plan *plan, const bool *chosen, tsr_shared_reads *shared, uint64_t *wanted,
                             tsr_err *err);

/* Computes bytes_in, bytes_wanted, bytes_again and widest. */
tsr_status tsr_plan_count_reads(tsr_plan *plan, tsr_err *err);

/* Returns true if sharing saves more than 1 % of the reads. Otherwise its copies cost more than it saves. */
static inline bool tsr_worth_sharing(uint64_t wanted, uint64_t once)
{
    return wanted > once + once / 100;
}
