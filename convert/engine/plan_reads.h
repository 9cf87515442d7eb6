/* What the units of a plan read, window by window. */
#ifndef TSR_CONVERT_ENGINE_PLAN_READS_H
#define TSR_CONVERT_ENGINE_PLAN_READS_H

#include "convert/engine/plan.h"
#include "convert/engine/shared_reads.h"

/* Visits a window that has rows, of a source tensor. */
typedef tsr_status tsr_visit_window(void *data, const tsr_tensor *t, const tsr_window *w, tsr_err *err);

/* Visits what a unit of a step, or of an amax, reads. */
tsr_status tsr_step_reads(const tsr_step *step, uint64_t unit, tsr_visit_window *visit, void *data,
                          tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_amax_reads(const tsr_amax *amax, uint64_t unit, tsr_visit_window *visit, void *data,
                          tsr_err *err) TSR_WARN_UNUSED;

/* Of what a unit of an amax reads, the tensor that window i is of. */
const tsr_tensor *tsr_amax_input(const tsr_amax_rows *at, uint32_t i);

/* Announces to `shared` what the files of a plan for which `chosen` is true (NULL: all files) will read, in the order in which
 * it will be read. *wanted: the bytes of all windows together; may be NULL. */
tsr_status tsr_plan_announce(const tsr_plan *plan, const bool *chosen, tsr_shared_reads *shared, uint64_t *wanted,
                             tsr_err *err) TSR_WARN_UNUSED;

/* Computes bytes_in, bytes_wanted, bytes_again and widest. */
tsr_status tsr_plan_count_reads(tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;

/* Whether sharing is worth its copies: whether it spares more than a hundredth of what is read. */
static inline bool tsr_worth_sharing(uint64_t wanted, uint64_t once)
{
    return wanted > once + once / 100;
}

#endif
