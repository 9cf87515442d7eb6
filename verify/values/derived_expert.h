/* Derives one expert's matrix or bias from a stack, if one side has the stack and the other has single experts. */
#pragma once

#include "verify/values/derived_values.h"

/* Returns true if `wanted`, an expert's tensor that `from` lacks, is part of a stack of `from`. Sets *made to the
 * part. */
bool tsr_derived_expert_find(const tsr_side *from, const tsr_weight *wanted, tsr_derived_tensor *made);

/* Returns true if `with` has every expert of `stack`, a tensor of `from`, as single tensors, and `from` has none of
 * these. */
bool tsr_derived_expert_replaces(const tsr_side *from, const tsr_side *with, const tsr_weight *stack);

/* Computes the values of an expert's matrix, and the number of scratch values. */
tsr_status tsr_derived_expert_values(const tsr_view *view, const tsr_derived_tensor *made, const tsr_piece *piece,
                                     double *out, double *scratch, tsr_err *err);
uint64_t tsr_derived_expert_scratch(const tsr_derived_tensor *made, const tsr_piece *piece);
