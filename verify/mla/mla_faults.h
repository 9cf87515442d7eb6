/* Two results that should be near to each other, and, where they are not, the mistake that explains it. */
#ifndef TSR_VERIFY_MLA_MLA_FAULTS_H
#define TSR_VERIFY_MLA_MLA_FAULTS_H

#include "verify/evidence/evidence.h"
#include "verify/mla/mla_reference.h"

/* Two arrays, what they are, and how much they may differ. */
typedef struct tsr_mla_pair {
    const char *what;
    tsr_error_kind kind;
    const double *x, *y;
    size_t rows, cols;
    double max_relative, min_sqnr; /* NaN: no limit */
} tsr_mla_pair;

/* The RMS of x - y over the RMS of x. */
double tsr_mla_relative(const double *x, const double *y, size_t n);

/* Whether this relative error is within the pair's limits. */
bool tsr_mla_within(const tsr_mla_pair *pair, double error);

/* Whether y holds the heads of x in another order. If so, `text` says which heads, or which ranks, are swapped. */
bool tsr_mla_name_heads(const tsr_mla_pair *pair, size_t heads, size_t ranks, char *text, size_t size);

/* *finite becomes false where a stage of the model holds NaN or Inf. That says nothing of kernels, and is noted as a fault of
 * the checkpoint, with the tensor that it comes from. */
tsr_status tsr_mla_check_finite(const tsr_mla_model *model, const tsr_mla_batch *batch, const tsr_mla_stages *stages,
                                const char *subject, bool *finite, tsr_evidence *evidence,
                                tsr_err *err) TSR_WARN_UNUSED;

/* For a stage that is beyond the pair's limits: computes it with each known mistake, from the earlier stages in `in`.
 * *named is the mistake that gives the pair's y, in `text` or static; NULL: none does. */
tsr_status tsr_mla_name_stage(const tsr_mla_model *model, const tsr_mla_batch *batch, const tsr_mla_stages *in,
                              tsr_mla_stage stage, const tsr_mla_pair *pair, size_t ranks, char *text, size_t size,
                              const char **named, tsr_err *err) TSR_WARN_UNUSED;

#endif
