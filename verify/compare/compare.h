/* Two checkpoints, tensor by tensor, by the values that a reader gets: formats and spellings of scales do not matter.
 *
 * Tensors are matched by name; scales are part of their weights. Parts of an absorbed kv_b_proj, and what it was folded
 * into, are held to what verify/values/derived_values.h makes of the other side. Both checkpoints stream through: each thread
 * holds one piece of each, of at most 2 MiB of data, and the pieces of one large tensor are spread over all threads.
 * What comes out is the same for any number of threads. */
#ifndef TSR_VERIFY_COMPARE_COMPARE_H
#define TSR_VERIFY_COMPARE_COMPARE_H

#include "verify/compare/pairs.h"

/* Compares all pairs. With ranks, each compares the tensors that it claims, and all get the whole comparison. Differences are
 * results, not errors. TSR_E_USAGE: no name matches. TSR_E_NOMEM: run.memory is too small, with what is needed.
 * TSR_E_CANCELLED: stopped by *run.cancel. */
tsr_status tsr_compare(const tsr_side *a, const tsr_side *b, const tsr_compare_options *options,
                       tsr_comparison *comparison, tsr_err *err) TSR_WARN_UNUSED;

void tsr_comparison_free(tsr_comparison *comparison);

/* Makes a view of one side of a complete pair: side[which]'s. */
tsr_status tsr_pair_view(tsr_view *view, const tsr_side *side, const tsr_pair *pair, unsigned which,
                         tsr_err *err) TSR_WARN_UNUSED;

#endif
