/* Compares two checkpoints tensor by tensor, by the decoded values: formats and names of scales do not matter.
 *
 * Tensors are matched by name; scales are part of their weights. Parts of an absorbed kv_b_proj, and weights that it
 * was folded into, are compared with values that verify/values/derived_values.h derives from the other side. Both
 * checkpoints are streamed: each thread holds one piece of each, of at most 2 MiB of data, and the pieces of a large
 * tensor are spread over all threads. The results do not depend on the number of threads. */
#pragma once

#include "verify/compare/pairs.h"

/* Compares all pairs. Each rank compares the tensors that it claims, and all ranks get the whole comparison.
 * Differences are results, not errors. TSR_E_USAGE: no name matches. TSR_E_NOMEM: run.memory is too small; the message
 * has the required size. TSR_E_CANCELLED: stopped by *run.cancel. */
tsr_status tsr_compare(const tsr_side *a, const tsr_side *b, const tsr_compare_options *options,
                       tsr_comparison *comparison, tsr_err *err);

void tsr_comparison_free(tsr_comparison *comparison);

/* Makes a view of one side of a complete pair, side[which]. */
tsr_status tsr_pair_view(tsr_view *view, const tsr_side *side, const tsr_pair *pair, unsigned which, tsr_err *err);
