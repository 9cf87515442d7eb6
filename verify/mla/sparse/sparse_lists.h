/* Lists of the cache's rows for sparse attention, and the known mistakes of kernels that read them. */
#pragma once

#include "verify/mla/mla_work.h"

/* Returns the entries of a list of at most top_k tokens: the next multiple of 64 above it, so that each list has
 * entries of -1. FlashMLA needs a multiple of 64. */
size_t tsr_mla_list_length(size_t top_k);

/* Fills the lists of all slots from the subject's choice, over the pages of the cache. The seed determines the order of
 * the entries. */
void tsr_mla_fill_lists(tsr_mla_work *work);

/* Sets the fault of a judgement of work->got if a known mistake explains it: indices taken as positions, entries of -1
 * that count, lists that are ignored, or a query without tokens whose result is not zeros. */
tsr_status tsr_mla_name_sparse(tsr_mla_work *work, tsr_judgement *judgement, tsr_err *err);
