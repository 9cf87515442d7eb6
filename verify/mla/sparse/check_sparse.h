/* Verifies sparse latent attention: the scores of a layer's indexer in FP8, the tokens that they choose, and attention
 * to these tokens.
 *
 * Twice: for the queries of the subject's batch, and for prefill, with the last TSR_SPARSE_PREFILL tokens of each
 * sequence as queries. See docs/verify-mla-sparse.md. */
#pragma once

#include "verify/mla/mla_kernels.h"

enum { TSR_SPARSE_PREFILL = 128 };

/* Checks a subject whose model has an open indexer. `original` is the model of --against with an open indexer, or
 * NULL. */
tsr_status tsr_mla_check_sparse(const tsr_mla_subject *subject, const tsr_mla_model *original, tsr_evidence *evidence,
                                double *since, tsr_err *err);
