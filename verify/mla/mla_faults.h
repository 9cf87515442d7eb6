/* Compares two results that should agree, and names the mistake that explains a difference. */
#pragma once

#include "verify/evidence/evidence.h"
#include "verify/mla/mla_reference.h"

/* Two arrays with their names and the limits of their difference. */
typedef struct tsr_mla_fault_pair {
    const char *what;
    tsr_error_kind kind;
    const double *x, *y;
    size_t rows, cols;
    double max_relative, min_sqnr; /* NaN: no limit */
} tsr_mla_fault_pair;

/* Returns the RMS of x - y divided by the RMS of x. */
double tsr_mla_relative(const double *x, const double *y, size_t n);

/* Returns true if this relative error is within the pair's limits. */
bool tsr_mla_within(const tsr_mla_fault_pair *pair, double error);

/* Returns true if y has the heads of x in another order. `text` then names the swapped heads or ranks. */
bool tsr_mla_name_heads(const tsr_mla_fault_pair *pair, size_t heads, size_t ranks, char *text, size_t size);

/* Sets *finite to false if a stage of the model has NaN or Inf. That is not an error of a kernel. It becomes a
 * finding about the checkpoint that names the tensor of its origin. */
tsr_status tsr_mla_check_finite(const tsr_mla_model *model, const tsr_mla_batch *batch, const tsr_mla_stages *stages,
                                const char *subject, bool *finite, tsr_evidence *evidence, tsr_err *err);

/* Computes a stage that exceeds the pair's limits with each known mistake, from the earlier stages in `in`. *named
 * is the mistake that results in the pair's y, in `text` or static storage; NULL: none does. */
tsr_status tsr_mla_name_stage(const tsr_mla_model *model, const tsr_mla_batch *batch, const tsr_mla_stages *in,
                              tsr_mla_stage stage, const tsr_mla_fault_pair *pair, size_t ranks, char *text,
                              size_t size, const char **named, tsr_err *err);
